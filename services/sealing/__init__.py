"""How a stored object is sealed: its bytes in segments under a key of its own, and that key in an envelope."""
