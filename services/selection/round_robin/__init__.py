"""Selection in turn: a window over the clients' names that moves on each round."""
