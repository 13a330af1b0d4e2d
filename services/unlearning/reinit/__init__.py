"""Re-initialisation: restart the cohorts with the client from the mean of the cohorts inside them without it."""
