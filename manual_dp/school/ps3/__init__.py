"""Problem set 3."""
