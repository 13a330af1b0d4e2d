"""The update history: what is kept of each client's update, how it is coded, compressed and sealed."""
