"""Problem set 1: train LeNet on many devices by hand, on plain tensors."""
