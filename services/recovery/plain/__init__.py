"""Plain recovery: those who remain train on as they always do (the recovery of FUDP, Wang et al., WWW 2022)."""
