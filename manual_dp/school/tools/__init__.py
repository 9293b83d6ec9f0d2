"""What several problem sets share, open to answers."""
