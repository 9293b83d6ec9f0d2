"""Every method side by side."""
