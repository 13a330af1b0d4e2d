"""FUDP (Wang et al., WWW 2022): prune the channels that tell a class apart, then let the remaining clients train on."""
