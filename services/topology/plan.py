"""Server decisions of topologies: the profiling round that clusters are formed from, and the merge at the end."""

from __future__ import annotations

from typing import Literal

from services.core.errors import InvariantBroken, Rejected
from services.core.seeds import derive
from services.program.contract import (
    Abort,
    AskClients,
    CohortView,
    Collected,
    Compute,
    Computed,
    Finish,
    FormCohorts,
    JoinCluster,
    Outcome,
    Publish,
    Published,
    Step,
    UpdateRef,
)
from services.topology.cohorts import check_sizes, size_bounds
from services.topology.spec import Clusters
from services.training.rounds import evaluation_step, merge_step
from services.wire.message import Message


class ProfileState(Message):
    phase: Literal["initialising", "publishing", "asking", "assigning", "done"]
    model: str | None = None
    figures: dict[str, float] = {}
    """What the assignment was made of: anchors, normalisation, the clients' disparities."""


class ProfileProgram:
    """KNOT and FedCIO: everybody trains once from the initial model; times and updates decide the clusters.

    The clusters start from that same initial model. What this round made of it is never trained on.
    """

    state_type = ProfileState

    def start(self, view: CohortView) -> tuple[ProfileState, Step]:
        if infeasible := _infeasible(view, view.num_members):
            return ProfileState(phase="done"), infeasible
        if view.spec.init is not None:
            return self._publish(view.spec.init)
        return ProfileState(phase="initialising"), _initial_model(view)

    def resume(self, state: ProfileState, outcome: Outcome, view: CohortView) -> tuple[ProfileState, Step]:
        match state.phase, outcome:
            case "initialising", Computed(digest=str(digest)):
                return self._publish(digest)
            case "publishing", Published() if state.model is not None:
                ask = AskClients("train", 1, state.model, view.num_members, view.num_members)
                return state.model_copy(update={"phase": "asking"}), ask
            case "asking", Collected() if state.model is not None:
                infeasible = _infeasible(view, len(outcome.updates))
                step = infeasible or _assignment(state.model, outcome, view)
                return state.model_copy(update={"phase": "assigning"}), step
            case "assigning", Computed(figures=figures):
                done = state.model_copy(update={"phase": "done", "figures": dict(figures)})
                return done, FormCohorts(clusters_of(figures))
        raise InvariantBroken(f"profiling in phase {state.phase} cannot take {type(outcome).__name__}")

    def _publish(self, digest: str) -> tuple[ProfileState, Step]:
        return ProfileState(phase="publishing", model=digest), Publish(digest, 0, "init")


def _infeasible(view: CohortView, num_clients: int) -> Abort | None:
    """They could make the clusters when the run was created; some may have left since."""
    assert isinstance(view.spec.topology, Clusters)
    try:
        check_sizes(view.spec.topology, num_clients)
    except Rejected as rejection:
        return Abort(f"the clusters can no longer be formed: {rejection.detail}")
    return None


def _initial_model(view: CohortView) -> Compute:
    params = {"model": view.spec.model.model_dump(), "seed": derive(view.spec.seed, "init")}
    return Compute("init_model", params, ())


class NewcomerState(Message):
    phase: Literal["initialising", "publishing", "asking", "measuring", "done"]
    model: str | None = None
    distances: list[float] = []


class NewcomerProgram:
    """A client that joins measured clusters trains once from the initial model, as those before it did."""

    state_type = NewcomerState

    def start(self, view: CohortView) -> tuple[NewcomerState, Step]:
        if view.spec.init is not None:
            return self._publish(view.spec.init)
        return NewcomerState(phase="initialising"), _initial_model(view)

    def resume(self, state: NewcomerState, outcome: Outcome, view: CohortView) -> tuple[NewcomerState, Step]:
        match state.phase, outcome:
            case "initialising", Computed(digest=str(digest)):
                return self._publish(digest)
            case "publishing", Published() if state.model is not None:
                return state.model_copy(update={"phase": "asking"}), AskClients("train", 1, state.model, 1, 1)
            case "asking", Collected(updates=(update,)) if state.model is not None:
                return state.model_copy(update={"phase": "measuring"}), _measure(state.model, update, view)
            case "measuring", Computed(figures=figures):
                assert isinstance(view.spec.topology, Clusters)
                distances = [figures[f"distance:{n}"] for n in range(view.spec.topology.num_clusters)]
                return state.model_copy(update={"phase": "done", "distances": distances}), JoinCluster()
        raise InvariantBroken(f"a newcomer in phase {state.phase} cannot take {type(outcome).__name__}")

    def _publish(self, digest: str) -> tuple[NewcomerState, Step]:
        return NewcomerState(phase="publishing", model=digest), Publish(digest, 0, "init")


def _measure(model: str, newcomer: UpdateRef, view: CohortView) -> Compute:
    topology, profiled = view.spec.topology, view.profiled
    assert isinstance(topology, Clusters) and profiled is not None and newcomer.digest is not None
    updates = [{"client": u.client, "digest": u.digest, "weight": float(u.num_samples)} for u in profiled.updates]
    params = {
        "base": model,
        "newcomer": {"digest": newcomer.digest, "seconds": newcomer.seconds},
        "updates": updates,
        "figures": dict(profiled.figures),
        "num_clusters": topology.num_clusters,
    }
    kernel = "knot_newcomer" if topology.assignment == "knot" else "spectral_newcomer"
    digests = (u.digest for u in profiled.updates if u.digest is not None)
    return Compute(kernel, params, (model, newcomer.digest, *digests))


def _assignment(model: str, collected: Collected, view: CohortView) -> Compute:
    topology = view.spec.topology
    assert isinstance(topology, Clusters)
    min_size, max_size = size_bounds(topology, len(collected.updates))
    updates = [
        {"client": u.client, "digest": u.digest, "weight": float(u.num_samples), "seconds": u.seconds}
        for u in collected.updates
    ]
    params = {
        "base": model,
        "updates": updates,
        "num_clusters": topology.num_clusters,
        "anchors": topology.anchors,
        "min_size": min_size,
        "max_size": max_size,
        "max_memberships": topology.max_memberships,
        "seed": derive(view.spec.seed, "clusters"),
    }
    kernel = "knot_profile" if topology.assignment == "knot" else "spectral_profile"
    return Compute(kernel, params, (model, *(u.digest for u in collected.updates if u.digest is not None)))


def clusters_of(figures: dict[str, float] | object) -> dict[str, tuple[int, ...]]:
    """The assignment as the kernels report it: `cluster:<client>` (and `cluster:<client>:<j>` for further ones)."""
    found: dict[str, list[int]] = {}
    assert isinstance(figures, dict)
    for name, value in sorted(figures.items()):
        if name.startswith("cluster:"):
            client = name.removeprefix("cluster:").split(":")[0]
            found.setdefault(client, []).append(int(value))
    return {client: tuple(sorted(indices)) for client, indices in found.items()}


class MergeState(Message):
    phase: Literal["merging", "judging", "publishing", "done"]
    model: str | None = None
    num_lines: int = 0


class MergeProgram:
    """Make one model of the run's lines. It is published and served, and nothing is ever trained from it."""

    state_type = MergeState

    def start(self, view: CohortView) -> tuple[MergeState, Step]:
        if len(view.sources) == 1 and not self._is_ensemble(view):
            return self._judge(view.sources[0].digest, view)
        step = merge_step(view.sources)
        if self._is_ensemble(view):
            step = Compute("stack_models", step.params, step.inputs)
        return MergeState(phase="merging"), step

    def resume(self, state: MergeState, outcome: Outcome, view: CohortView) -> tuple[MergeState, Step]:
        match state.phase, outcome:
            case "merging", Computed(digest=str(digest)):
                return self._judge(digest, view)
            case "judging", Computed(figures=figures) if state.model is not None:
                judged = {f"validation_{name}": value for name, value in figures.items()}
                return self._publish(state.model, view, judged)
            case "publishing", Published():
                return MergeState(phase="done"), Finish(f"merged from {state.num_lines} lines")
        raise InvariantBroken(f"a merge in phase {state.phase} cannot take {type(outcome).__name__}")

    def _is_ensemble(self, view: CohortView) -> bool:
        return getattr(view.spec.topology, "merge", "weighted_average") == "ensemble"

    def _judge(self, digest: str, view: CohortView) -> tuple[MergeState, Step]:
        """An ensemble is several models in one file, which no kernel runs."""
        if view.spec.validation.data is None or self._is_ensemble(view):
            return self._publish(digest, view, {})
        return MergeState(phase="judging", model=digest), evaluation_step(digest, view)

    def _publish(self, digest: str, view: CohortView, figures: dict[str, float]) -> tuple[MergeState, Step]:
        published = Publish(digest, view.round, "merge", sources=view.sources, metrics=figures)
        return MergeState(phase="publishing", num_lines=len(view.sources)), published
