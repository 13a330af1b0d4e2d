"""Content-addressed blobs, one namespace per federation: a port with a file and a PostgreSQL back end."""
