"""The parameters that every selection policy has: its name, and for some how long a profile may take."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from services.wire.message import Message


class SelectionSpec(Message):
    policy: str

    def blobs(self) -> dict[str, str]:
        """Digests of an operator's uploads that the policy starts from, by the parameter that names each."""
        return {}


class ProfiledSpec(SelectionSpec):
    """A policy that knows clients by their updates: before its first round, each of them trains one epoch from the
    model at hand."""

    profile_deadline_s: Annotated[float, Field(gt=0, le=30 * 86400)] = Field(
        default=600.0,
        description="How long the profile waits; whoever has not answered by then is drawn by lot.",
    )
