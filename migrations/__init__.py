"""Alembic migrations, run on SQLite and Postgres by `lethe db upgrade`."""
