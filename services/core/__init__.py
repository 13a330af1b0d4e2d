"""Identifiers, errors and derived seeds: what every other room may use."""
