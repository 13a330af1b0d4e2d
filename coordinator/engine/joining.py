"""Clients that join a run which is going: a new member, a new cohort, or a new place in a tree.

A model goes on as it is when its cohort gains a member: its past does not contain the newcomer. A cohort without the
newcomer draws, trains and serves exactly what it would have without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from coordinator.engine import events as e
from coordinator.engine import families
from coordinator.engine import messages as m
from coordinator.engine.draft import Draft
from coordinator.engine.entities import ENDED, Client, Cohort, Member, Run, State
from coordinator.engine.families import NewCohort, form_one
from services.core.errors import Rejected
from services.core.seeds import derive
from services.topology import influence_tree, knot
from services.topology.cohorts import FLAT, cluster_index, cluster_name, erasure_probabilities, size_bounds
from services.topology.influence_tree import Node
from services.topology.spec import Clusters, Flat, Isolated, Tree


def join_run(draft: Draft, message: m.JoinRun) -> Run:
    """Let enrolled clients take part; those who already do are passed over."""
    run = draft.state.runs.get(message.run_id)
    if run is None:
        raise Rejected("not-found", f"there is no run {message.run_id}")
    if run.status in ENDED:
        raise Rejected("conflict", f"run {run.name} is {run.status}; start a new run with this client instead")
    newcomers = [_newcomer(draft.state, message.federation_id, name) for name in sorted(set(message.clients))]
    for client in newcomers:
        if client.id not in _taking_part(draft.state, run.id):
            _admit(draft, draft.state.runs[run.id], client)
    return draft.state.runs[run.id]


def place_newcomer(draft: Draft, message: m.PlaceNewcomer) -> None:
    """A newcomer is measured: it joins the nearest cluster that has room now."""
    if message.job_id is not None and message.job_id in draft.state.jobs:
        draft.emit(e.JobSettled(message.job_id, "done"))
    run, measured = draft.state.runs[message.run_id], draft.state.cohorts[message.cohort_id]
    members = [x for x in draft.state.members.values() if x.cohort_id == measured.id and x.active]
    if run.status in ENDED or measured.phase != "finished" or measured.program_state is None or not members:
        return
    client = draft.state.clients[members[0].client_id]
    try:
        clusters = _clusters(draft.state, run, client)
        index = knot.place_newcomer(measured.program_state["distances"], *clusters)
    except Rejected as rejection:  # meanwhile the last clusters ended
        draft.emit(e.CohortRetired(measured.id, rejection.detail))
        return
    draft.emit(e.CohortRetired(measured.id, f"it joined {cluster_name(index)}"))
    _enter(draft, run, cluster_name(index), client)


def _newcomer(state: State, federation_id: UUID, name: str) -> Client:
    clients = state.clients.values()
    client = next((c for c in clients if c.federation_id == federation_id and c.name == name), None)
    if client is None:
        raise Rejected("not-found", f"this federation has no client {name}; enrol it first")
    if client.status == "erased":
        raise Rejected("already-erased", f"client {name} was erased and cannot come back; enrol under another name")
    if client.status != "active":
        raise Rejected("conflict", f"client {name} was removed; enrol it under another name")
    if any(s.client_id == client.id and s.active for s in state.subjects.values()):
        raise Rejected("conflict", f"an open request forgets client {name}; cancel it first")
    return client


def _taking_part(state: State, run_id: UUID) -> set[UUID]:
    living = {c.id for c in families.cohorts_of(state, run_id) if c.phase != "retired"}
    return {x.client_id for x in state.members.values() if x.cohort_id in living and x.active}


def _admit(draft: Draft, run: Run, client: Client) -> None:
    _count(draft, run, client)
    topology = run.spec.topology
    if isinstance(topology, Isolated):
        _isolate(draft, run, client)
    elif isinstance(topology, Clusters) and topology.assignment == "random":
        clusters = _clusters(draft.state, run, client)
        index = knot.draw_for_newcomer(client.name, *clusters, derive(run.spec.seed, "clusters"))
        _enter(draft, run, cluster_name(index), client)
    elif isinstance(topology, Clusters):
        _check_room(draft.state, run, client)
        _profile(draft, run, client)
    else:
        _enter(draft, run, FLAT if isinstance(topology, Flat) else influence_tree.ROOT, client)


def _count(draft: Draft, run: Run, client: Client) -> None:
    own = {c.id for c in families.cohorts_of(draft.state, run.id)}
    if not any(x.client_id == client.id and x.cohort_id in own for x in draft.state.members.values()):
        draft.emit(e.RunResized(run.id, run.num_clients + 1))


def _isolate(draft: Draft, run: Run, client: Client) -> None:
    name = influence_tree.leaf(client.name).name
    members, program = [(client.name, client.id)], run.spec.training.algorithm
    new = NewCohort(name, "leaf", members, program=program, group=name, joined=(client.name,))
    form_one(draft, run, new)


def _training_top(state: State, run: Run, group: str) -> Cohort:
    """The group's largest cohort, if all of the group still trains: after an erasure only a part of it may."""
    for cohort in _training_tops(state, run):
        if cohort.group == group:
            return cohort
    raise Rejected("conflict", f"run {run.name} has no round left to take part in; start a new run with this client")


def _training_tops(state: State, run: Run) -> list[Cohort]:
    living = [c for c in families.cohorts_of(state, run.id) if c.phase != "retired"]
    lines = [c for c in living if c.kind not in ("profile", "merge")]
    ended = {c.group for c in lines if c.phase not in families.TRAINING}
    return [c for c in lines if c.kind in ("line", "root") and c.group not in ended]


# --- clusters ---------------------------------------------------------------------------------------------------------


def _clusters(state: State, run: Run, client: Client) -> tuple[dict[int, int], int]:
    """The sizes of the clusters that still train, by index, and how many members each may have (c3)."""
    topology = run.spec.topology
    assert isinstance(topology, Clusters)
    sizes = {cluster_index(cohort.group): cohort.num_members for cohort in _training_tops(state, run)}
    if not sizes:
        raise Rejected("conflict", f"no cluster of run {run.name} trains any more; start a new run with this client")
    _, max_size = size_bounds(topology, len(_taking_part(state, run.id) | {client.id}))
    return sizes, max_size


def _check_room(state: State, run: Run, client: Client) -> None:
    """There is a place for this newcomer and for each that is still being measured."""
    profile = families.profile_of(state, run.id)
    if profile is not None and profile.phase != "retired":
        raise Rejected("conflict", f"run {run.name} is forming its clusters; let {client.name} join when it has them")
    measured = [c for c in families.cohorts_of(state, run.id) if c.program == families.NEWCOMER]
    num_ahead = sum(c.num_members for c in measured if c.phase != "retired")
    knot.check_room(*_clusters(state, run, client), num_ahead + 1)


def _profile(draft: Draft, run: Run, client: Client) -> None:
    """Measure it first, in a cohort of its own."""
    taken = {c.name for c in families.cohorts_of(draft.state, run.id)}
    names = (f"profile:{client.name}{suffix}" for suffix in ("", *(f":{n}" for n in range(2, len(taken) + 2))))
    name = next(name for name in names if name not in taken)
    members = [(client.name, client.id)]
    new = NewCohort(name, "profile", members, program=families.NEWCOMER, joined=(client.name,))
    form_one(draft, run, new)


# --- lines and trees --------------------------------------------------------------------------------------------------


def _enter(draft: Draft, run: Run, group: str, client: Client) -> None:
    top = _training_top(draft.state, run, group)
    if top.kind == "line":
        draft.emit(e.MemberJoined(Member(top.id, client.id, client.name, joined=True)))
    else:
        _graft(draft, run, top, client)


def _graft(draft: Draft, run: Run, root: Cohort, client: Client) -> None:
    """A leaf of its own, in a tree beside another one, under a new cohort of the two; those above gain a member."""
    before = _tree(draft.state, root)
    after, _ = _joined(run, before, client.name, {c.name for c in families.cohorts_of(draft.state, run.id)})
    known = {c.name: c for c in families.cohorts_of(draft.state, run.id) if c.phase != "retired"}
    nodes = {node.name: node for node in influence_tree.walk(after)}
    parent_id: UUID | None = None
    for name in influence_tree.paths(after)[client.name]:
        if name in known:
            draft.emit(e.MemberJoined(Member(known[name].id, client.id, client.name, joined=True)))
            parent_id = known[name].id
            continue
        beside = [known[child.name] for child in nodes[name].children if child.name in known]
        parent_id = _form_node(draft, run, root, nodes[name], beside, client, parent_id)
        for cohort in beside:
            draft.emit(e.CohortMoved(cohort.id, parent_id))


def _form_node(
    draft: Draft, run: Run, root: Cohort, node: Node, beside: list[Cohort], client: Client, parent_id: UUID | None
) -> UUID:
    """A new cohort of the tree. It starts from what was trained inside it; a leaf from the initial model."""
    inside = [x for c in beside for x in draft.state.members.values() if x.cohort_id == c.id and x.active]
    new = NewCohort(
        node.name,
        "inner" if node.children else "leaf",
        sorted([(client.name, client.id), *((x.name, x.client_id) for x in inside)]),
        program=run.spec.training.algorithm,
        parent_id=parent_id,
        group=root.group,
        joined={client.name, *(x.name for x in inside if x.joined)},
        round=_next_opening(root) - 1,
        sources=tuple(families.source(draft, c) for c in beside if families.is_trained(draft.state, c)),
    )
    return form_one(draft, run, new)


def _next_opening(root: Cohort) -> int:
    """The number of the round that the group opens next: new cohorts count on from the one before."""
    is_making_one = root.phase in ("asking", "computing") and root.head_id is not None
    return root.round + (2 if is_making_one else 1)


def _joined(run: Run, tree: Node, newcomer: str, taken: Iterable[str]) -> tuple[Node, tuple[str, ...]]:
    topology = run.spec.topology
    shape = topology.inside if isinstance(topology, Clusters) else topology
    if not isinstance(shape, Tree):
        return influence_tree.attach(tree, newcomer)
    return influence_tree.join(tree, newcomer, erasure_probabilities(shape, tree.members), taken=set(taken))


def _tree(state: State, cohort: Cohort) -> Node:
    """The part of a tree that has clients in it."""
    living = [c for c in state.cohorts.values() if c.parent_id == cohort.id and c.phase != "retired"]
    if cohort.kind == "leaf":
        names = [x.name for x in state.members.values() if x.cohort_id == cohort.id and x.active]
        return Node(cohort.name, tuple(names))
    below = [_tree(state, child) for child in sorted(living, key=lambda c: c.name)]
    children = tuple(node for node in below if node.members)
    return Node(cohort.name, tuple(sorted(name for node in children for name in node.members)), children)
