"""Measurements of this machine: what coordination costs, beside a bare reference; README.md says how to read them."""
