"""Evidence of an erasure: the certificate, its verification without a network, and the replay of aggregates."""
