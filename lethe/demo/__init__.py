"""`lethe demo`: a whole federation on this machine, in real processes, with a coordinator that is killed on the way."""
