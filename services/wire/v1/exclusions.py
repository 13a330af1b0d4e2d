"""Samples that a worker must leave out, and its word that it does.

A sample is named by its row number in the client's data source, from 0: see services/data/README.md.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from services.wire.message import Digest, Id, Message, Reply

MOST_ROW: Final = 2**53 - 1
"""The largest integer that every JSON reader keeps exact."""
MOST_UNKNOWN: Final = 20
"""At most this many unknown samples of a request are named; more would not help to find the mistake."""

SampleNumber = Annotated[int, Field(ge=0, le=MOST_ROW)]


class ExcludedSamples(Reply):
    """The samples of one request."""

    erasure_id: Id
    samples: list[int]


class Exclusions(Reply):
    """Everything that this client must leave out, for good. `digest` stands for all of it; tasks name it too."""

    digest: Digest | None
    items: list[ExcludedSamples]


class UnknownSamples(Message):
    erasure_id: Id
    samples: Annotated[list[SampleNumber], Field(min_length=1, max_length=MOST_UNKNOWN)]


class ExclusionsAcknowledgement(Message):
    """The samples are in the worker's ledger, on disk, and no later batch contains them; or `problem` says why not."""

    digest: Digest = Field(description="Of what was read; refused when it has changed meanwhile.")
    unknown: Annotated[list[UnknownSamples], Field(max_length=1000)] = Field(
        default=[], description="Samples that the client's data set does not have."
    )
    problem: Annotated[str, Field(min_length=1, max_length=500)] | None = Field(
        default=None, description="Why the samples cannot be left out; the client gets no task until this is mended."
    )


class ExclusionsAccepted(Reply):
    digest: Digest
