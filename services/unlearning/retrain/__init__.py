"""Retraining: roll the cohorts with the client back to their newest model without it, and train on."""
