"""Right answers as different people write them."""
