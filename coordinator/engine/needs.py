"""What a message has to see before it can be decided: the vocabulary in which messages state it.

Each field of `Needs` is one need: the ids it is about, and the tables of `State` that are loaded with it. The store
implements each need once (`store/slices.py`). A table that no need of a message loads cannot be read while the
message is decided.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final
from uuid import UUID

MAX_NAMED = 500
"""Up to so many clients of a new run are looked up by name; beyond, the whole federation is read."""
_WORK: Final = ("runs", "cohorts", "tasks", "rounds")
_RUN: Final = (*_WORK, "jobs", "members")
_MERGED: Final = (*_RUN, "checkpoints", "parents", "samples")
_REQUEST: Final = ("erasures", "subjects")
_REVIEW: Final = (*_REQUEST, *_MERGED, "affected_cohorts", "exclusions", "clients", "updates")
_LINEAGE: Final = (*_MERGED, "updates", "contributions", "kept", "traffic", "archives", "clients", "exclusions")
_STEP: Final = ("members", "updates", "affected_cohorts", "clients", "checkpoints", "contributions", *_REQUEST)
_PERIOD: Final = (*_RUN, *_REQUEST, "federations", "periods", "measures", "clients", "affected_cohorts")


def _loads(*tables: str) -> dict[str, Any]:
    return {"tables": frozenset(tables)}


@dataclass(slots=True)
class Needs:
    """The ids that a batch of messages names, by what has to be loaded around them."""

    runs: set[UUID] = field(default_factory=set, metadata=_loads(*_RUN))
    """Locked, with all their cohorts, open work and awaited rounds."""
    programs: set[UUID] = field(default_factory=set, metadata=_loads(*_WORK))
    """Cohorts whose program is started or resumed."""
    erasures: set[UUID] = field(default_factory=set, metadata=_loads(*_REQUEST))
    fences: set[UUID] = field(default_factory=set, metadata=_loads("affected_cohorts", *_REQUEST, *_LINEAGE))
    """Erasures whose subjects' runs are needed whole."""
    reviews: set[UUID] = field(default_factory=set, metadata=_loads(*_REVIEW))
    """Erasures whose affected cohorts and their runs' cohorts are needed."""
    announced: set[UUID] = field(default_factory=set, metadata=_loads("deliveries", *_REQUEST))
    """Erasures whose deliveries are numbered on."""
    deliveries: set[UUID] = field(default_factory=set, metadata=_loads("deliveries"))
    merging: set[UUID] = field(default_factory=set, metadata=_loads(*_MERGED))
    """Runs whose merged model may have to be made: members, their samples, heads."""
    resuming: set[UUID] = field(default_factory=set, metadata=_loads("affected_cohorts", "updates"))
    """Runs whose updates that wait in a buffer are needed."""
    begun: set[UUID] = field(default_factory=set, metadata=_loads("clients", "exclusions", *_REQUEST))
    """Requests whose clients may be told which samples to leave out."""
    leavers: set[tuple[UUID, str]] = field(default_factory=set, metadata=_loads(*_LINEAGE))
    """(federation, client name) whose runs are needed whole, to see what an erasure would do."""
    filings: set[UUID] = field(default_factory=set, metadata=_loads("four_eyes", *_REQUEST))
    """Federations whose open requests a new one has to reckon with, and which of them somebody has to approve."""
    tasks: set[UUID] = field(default_factory=set, metadata=_loads("updates", *_WORK))
    submitted: set[UUID] = field(default_factory=set, metadata=_loads("facts", "updates", *_WORK))
    """Tasks whose model is compared with what was uploaded for them."""
    rounds: set[UUID] = field(default_factory=set, metadata=_loads(*_WORK))
    recalled: set[UUID] = field(default_factory=set, metadata=_loads("contributions", "updates", "clients", "kept"))
    """Models whose updates an erasure's method looks up."""
    jobs: set[UUID] = field(default_factory=set, metadata=_loads("jobs", *_WORK))
    claimants: set[UUID] = field(default_factory=set, metadata=_loads("clients", "facts", *_WORK))
    acknowledging: set[UUID] = field(default_factory=set, metadata=_loads("clients", "exclusions"))
    """Clients with all the samples that they must leave out."""
    restarting: set[UUID] = field(default_factory=set, metadata=_loads("clients", *_WORK))
    opening: set[UUID] = field(default_factory=set, metadata=_loads("clients"))
    """Clients whose own rows change, and nothing else."""
    leaving: set[UUID] = field(default_factory=set, metadata=_loads("clients", "members", *_WORK))
    clients: set[UUID] = field(default_factory=set, metadata=_loads("clients"))
    mentioned: set[tuple[UUID, str]] = field(default_factory=set, metadata=_loads("clients"))
    """(federation, client name) of those a new run is formed from, when it names few."""
    joining: set[tuple[UUID, str]] = field(default_factory=set, metadata=_loads("clients", "subjects"))
    """(federation, client name) of those who join a run; it matters whether a request is about to forget them."""
    measured: set[UUID] = field(default_factory=set, metadata=_loads("clients"))
    """Cohorts of newcomers whose client is needed."""
    federations: set[UUID] = field(default_factory=set, metadata=_loads("clients"))
    """Federations whose clients a new run is formed from."""
    models: set[str] = field(default_factory=set, metadata=_loads("checkpoints", "runs"))
    """Digests: every checkpoint with these bytes is needed."""
    blobs: set[UUID] = field(default_factory=set, metadata=_loads("blobs"))
    """Blobs that are about to be recorded."""
    uploads: set[tuple[UUID, str]] = field(default_factory=set, metadata=_loads("blobs"))
    """(task, digest) of what is submitted."""
    named: set[tuple[UUID, str]] = field(default_factory=set, metadata=_loads("blobs", "facts", "superseded"))
    """(federation, digest) of what is used by its name, or must not be: every blob with these bytes, and
    whether an erasure superseded a model with them."""
    superseded: set[tuple[UUID, str]] = field(default_factory=set, metadata=_loads("superseded"))
    """(federation, digest): only whether an erasure superseded a model with these bytes."""
    allocating: set[UUID] = field(default_factory=set, metadata=_loads(*_PERIOD))
    """Federations whose clients may be divided anew, by their own id or that of a run or request of theirs. Where they
    are: all open runs, the clients with what was measured of them, the requests that are not done."""
    governed: set[UUID] = field(default_factory=set, metadata=_loads(*_PERIOD))
    """Federations whose own rows change."""
    steps_program: bool = field(default=False, metadata=_loads(*_STEP))
    """Whether a program may take a step: members, buffered updates, and what an erasure's method works on."""
    claimed_runs: set[UUID | None] = field(default_factory=set)
    """Runs that are claimed from; None stands for all."""
    all_stay: bool = True
    """Whether only samples are forgotten: then whoever has them goes on training."""

    def tables(self) -> set[str]:
        """The tables of `State` that are loaded for these needs."""
        return {table for name, tables in _TABLES if getattr(self, name) for table in tables}


_TABLES: Final = [(one.name, one.metadata["tables"]) for one in fields(Needs) if "tables" in one.metadata]
