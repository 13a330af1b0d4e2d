"""Which members of a cohort are asked in a round."""
