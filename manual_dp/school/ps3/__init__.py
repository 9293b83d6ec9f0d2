"""Problem set 3: what more devices change: batch, learning rate, rows, accuracy."""
