"""The agent that a data holder runs: claims work, trains on local data, returns updates; outbound HTTPS only."""
