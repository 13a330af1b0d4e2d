"""One description for each method, and everything that is looked up by a method's name."""
