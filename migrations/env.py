"""Alembic's entry: works on the connection that `coordinator.store.schema` hands over."""

from __future__ import annotations

from typing import Any, Literal

from alembic import context
from alembic.autogenerate.api import AutogenContext

from coordinator.blobs import postgres as blob_tables
from coordinator.store import tables


def render_item(kind: str, item: Any, autogen_context: AutogenContext) -> str | Literal[False]:
    """Migrations stand on plain SQLAlchemy types, not on the code of the day."""
    return "sa.DateTime(timezone=True)" if kind == "type" and isinstance(item, tables.Instant) else False


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=[tables.metadata, blob_tables.metadata],
    render_item=render_item,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
