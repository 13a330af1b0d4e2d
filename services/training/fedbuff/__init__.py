"""Buffered asynchronous aggregation (Nguyen et al., AISTATS 2022): the server steps whenever M updates are in."""
