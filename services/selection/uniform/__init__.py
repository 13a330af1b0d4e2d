"""Uniform selection (McMahan et al., AISTATS 2017): every set of clients is equally likely."""
