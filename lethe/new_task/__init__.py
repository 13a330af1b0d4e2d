"""What `lethe new` copies: a task of one's own with its run, its simulation and its test."""
