"""How a cohort trains: the loop at the client, and one package per algorithm at the server."""
