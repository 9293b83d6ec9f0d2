"""Grade notebooks that were handed in."""
