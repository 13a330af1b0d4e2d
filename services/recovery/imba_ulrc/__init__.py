"""Imba-ULRc (Yu et al., 2024): each client makes samples of the class that the erasure cost most, by SMOTE in the
latent space of an encoder, and leaves out those that lie apart."""
