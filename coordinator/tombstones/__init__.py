"""What must never come back: an append-only log of erasures, outside the database and its backups."""
