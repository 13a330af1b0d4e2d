"""Committed files that every later version must still read, and how they were made."""
