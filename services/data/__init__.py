"""A data holder's arrays: where they come from, how they become model inputs, how experiments divide them."""
