"""Rapid retraining (Liu et al., INFOCOM 2022): retrain without the client, with second-order steps at the clients."""
