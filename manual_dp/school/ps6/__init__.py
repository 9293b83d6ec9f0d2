"""Problem set 6: batch normalisation over ranks, and accumulation."""
