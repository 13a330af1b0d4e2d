"""Selection by k-means: one client from each cluster of similar updates (a baseline of Wang et al., INFOCOM 2020)."""
