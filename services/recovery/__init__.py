"""Recovery methods, one package each: what clients do in the rounds after an erasure, and how the class is found that
an erasure cost most."""
