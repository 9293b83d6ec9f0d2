"""Problem set 2: all-reduce that scales, as programs that send messages."""
