"""Answers that are only looked at: both clients give these. What can be acted on is a handle of its own in each."""

from __future__ import annotations

from typing import Any

from lethe.client.answers import Answer
from lethe.client.rendering import table
from services.wire.v1 import (
    acts,
    erasure,
    exclusions,
    incentives,
    people,
    resources,
    signin,
    superseded_models,
    views,
    work,
)


class Federation(Answer, resources.Federation):
    """A group of clients that train together."""


class Me(Answer, people.Me):
    """Whose credential this is, and what it may do."""


class Issued(Answer, resources.IssuedCredential):
    """A new credential: the only answer that ever contains its token."""

    def _repr_html_(self) -> str:
        return f"<div>a token for the role {self.role}: see <code>.token</code>; it is shown nowhere else</div>"

    def __repr__(self) -> str:
        return f"Issued(role={self.role!r}, token=…)"

    __str__ = __repr__


class OpenIdInfo(Answer, signin.OpenIdInfo):
    """Whether people can sign in with OpenID Connect."""


class HandOver(Answer, signin.HandOver):
    """A link that hands a certificate over once."""


class IssuedHandOver(Answer, signin.IssuedHandOver):
    """A new link: the only answer that ever contains its secret."""

    def _repr_html_(self) -> str:
        return "<div>a link that hands a certificate over: see <code>.url</code>; it is shown nowhere else</div>"

    def __repr__(self) -> str:
        return f"IssuedHandOver(id={self.id!s}, url=…)"

    __str__ = __repr__


class HandedOver(Answer, signin.HandedOver):
    """What a link handed over: each text is a file, to be kept byte for byte."""


class RunFields(Answer, resources.Run):
    """A run. Its specification stays a document: the coordinator may know methods that are not installed here."""

    spec: dict[str, Any]  # type: ignore[assignment]


class RunValidation(Answer, resources.RunValidation):
    """What a run of this specification would begin with."""


class Round(Answer, resources.Round):
    kind: str


class Task(Answer, resources.Task):
    kind: str


class CohortHistory(Answer, resources.CohortHistory):
    """What is kept of a cohort's updates, and what that is good for."""


class KeptUpdate(Answer, resources.KeptUpdate):
    """A sealed copy of an update."""


class Event(Answer, resources.Event):
    """Something that happened to a run."""


class Lineage(Answer, resources.Lineage):
    """How a checkpoint came to be."""


class LineageEdges(Answer, views.LineageEdges):
    """The models behind a checkpoint and the updates in each, as a graph."""


class Topology(Answer, views.RunTopology):
    """A run as a picture: its cohorts, their members, models and fences."""


class RunSeries(Answer, views.RunSeries):
    """A run as curves."""


class Grid(Answer, views.RunGrid):
    """A run as a grid: which client did what in which round."""


class Worker(Answer, views.Worker):
    """How a client's worker is."""


class System(Answer, views.System):
    """How an installation is."""


class FeedEvent(Answer, views.FeedEvent):
    """Something that happened to a run or a request of a federation."""


class VerificationKey(Answer, views.VerificationKey):
    """A key that certificates are, or were, signed with."""


class Member(Answer, resources.Member):
    """A member of a cohort."""


class Period(Answer, incentives.Period):
    """A division of a federation's clients among its jobs."""


class LedgerEntry(Answer, incentives.LedgerEntry):
    """What an answer cost its client, or what the round that used it paid."""


class RecordedAct(Answer, acts.RecordedAct):
    """An entry of the log of acts, and what of it can still be read."""


class BlobInfo(Answer, work.BlobInfo):
    """A stored file."""


class Preview(Answer, erasure.ErasurePreview):
    """What a request would do and cost, method by method."""

    def _repr_html_(self) -> str:
        rows = [{**one, "cohorts": len(one["cohorts"])} for one in self.document["options"]]
        return f"<div><b>{self.chosen}</b> would be used{table(rows)}</div>"


class ErasureEvent(Answer, erasure.ErasureEvent):
    """Something that happened to a request."""


class Note(Answer, erasure.Note):
    """What staff wrote about a request."""


class Count(Answer, erasure.ErasureCount):
    """How many requests there are, by what they need."""


class Delivery(Answer, erasure.ErasureDelivery):
    """One change of a request, on its way to one callback."""


class Discovery(Answer, erasure.Discovery):
    """What a coordinator can forget, how, and the key that its certificates are signed with."""


class Health(Answer, resources.Health):
    """Whether a coordinator is alive, or ready."""


class Session(Answer, work.Session):
    """A worker's."""


class Grant(Answer, work.TaskGrant):
    """One task, leased to the worker."""

    kind: str
    work: dict[str, Any] | None = None  # type: ignore[assignment]


class Claim(Answer):
    tasks: list[Grant]


class HeartbeatReply(Answer, work.HeartbeatReply):
    """How long the lease now runs."""


class SubmissionReply(Answer, work.SubmissionReply):
    """The result is accepted."""


class FailureReply(Answer, work.FailureReply):
    """Whether the task is tried again."""


class Exclusions(Answer, exclusions.Exclusions):
    """Everything that a client must leave out."""


class ExclusionsAccepted(Answer, exclusions.ExclusionsAccepted):
    """The coordinator knows that they are left out."""


class SupersededModels(Answer, superseded_models.SupersededModels):
    """Models that a worker must not keep."""


class ModelsDroppedAccepted(Answer, superseded_models.ModelsDroppedAccepted):
    """The coordinator knows that they are gone."""
