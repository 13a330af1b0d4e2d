"""`lethe demo`: a whole federation on this machine, in real processes: it trains, is killed on the way, and forgets."""
