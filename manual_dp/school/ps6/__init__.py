"""Problem set 6."""
