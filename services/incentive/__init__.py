"""Who serves which of several jobs, and what that pays: an evolutionary game, and strategies to compare it with."""
