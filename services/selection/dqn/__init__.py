"""Selection by double deep Q-learning (after Wang et al., INFOCOM 2020): a network learns which clients help most."""
