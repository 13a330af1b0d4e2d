"""Virtual time for experiments: how long each client takes, and what happens next. Pure: no clock is read."""
