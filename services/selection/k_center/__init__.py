"""K-center (Gonzalez, 1985; as used by Wang et al., INFOCOM 2020): clients whose updates are far apart take part."""
