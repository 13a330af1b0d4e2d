"""Federated averaging (McMahan et al., AISTATS 2017): synchronous rounds, weighted mean of the clients' deltas."""
