"""The tables of what a restored database learnt from the lists beside the tombstones."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, String, Table, Uuid

from coordinator.store.tables.columns import metadata

taint_lists = Table(
    "taint_lists",
    metadata,
    # A request of the log: the database may not know it yet.
    Column("request_id", Uuid, primary_key=True),
    # How much of its list is known here, by its own rows or by those that were learnt.
    Column("num_bytes", BigInteger, nullable=False),
)

tainted = Table(
    "tainted",
    metadata,
    Column("federation_id", Uuid, ForeignKey("federations.id"), primary_key=True),
    Column("digest", String(71), primary_key=True),
    # Nobody may send a model that was taken out of use; an update may be sent by clients, and by no operator.
    Column("is_model", Boolean, primary_key=True),
)
