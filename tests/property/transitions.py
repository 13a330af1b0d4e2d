"""What must hold of single decisions, given the world before and after: fences, published models, rounds that open."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from coordinator.engine import events as e
from coordinator.engine import families
from coordinator.engine import messages as m
from coordinator.engine.entities import ENDED, GIVEN_UP, OPEN_TASK, AffectedCohort, Checkpoint, Cohort, Erasure, State
from coordinator.engine.erasure.status import is_allowed
from services.wire.v1.erasure import ErasureStatus
from tests.property.invariants import checkpoint_is_what_its_lineage_says
from tests.support.world import World


@dataclass
class Watch:
    """Looks at each decision of a world once."""

    num_seen: int = 0

    def all_hold(self, world: World) -> None:
        for before, envelope, decision in world.decisions[self.num_seen :]:
            match envelope.message:
                case m.FenceErasure(erasure_id=erasure_id):
                    if before.erasures[erasure_id].status != decision.state.erasures[erasure_id].status:
                        fence_is_exact(world, before, decision.state, erasure_id)
                case m.ReviewErasure():
                    kinds = {type(event) for event in decision.events}
                    restarted = {x.cohort_id for x in decision.events if isinstance(x, e.CohortRestarted)}
                    fenced = {x.cohort_id for x in decision.events if isinstance(x, e.CohortFenced)}
                    assert restarted <= fenced or e.AffectedCohortDone in kinds, "merged again for no recovered line"
                case m.JoinRun() | m.PlaceNewcomer():
                    joining_leaves_the_others_alone(before, decision.state)
            requests_move_as_the_table_says(before, envelope.message, decision.events)
            for event in decision.events:
                match event:
                    case e.RoundOpened(round=round) if round.kind == "train":
                        group_opens_together(before, round.cohort_id, envelope.message)
                    case e.CheckpointPublished(checkpoint=checkpoint):
                        checkpoint_is_what_its_lineage_says(world, checkpoint)
                    case e.ErasureMoved(erasure_id=erasure_id, first_clean_at=clean_at) if clean_at is not None:
                        lines = [
                            one for one in decision.state.affected_cohorts.values() if one.erasure_id == erasure_id
                        ]
                        assert all(one.clean_at is not None for one in lines), "not all lines are clean"
                    case e.AffectedCohortDone(erasure_id=erasure_id, cohort_id=cohort_id):
                        line_is_done(decision.state, decision.state.affected_cohorts[erasure_id, cohort_id])
                        merged_model_has_it(decision.state, cohort_id)
        self.num_seen = len(world.decisions)


def requests_move_as_the_table_says(before: State, message: m.Message[Any], events: Iterable[e.Event]) -> None:
    known = dict(before.erasures)
    for event in events:
        match event:
            case e.ErasureFiled(erasure=filed):
                moves: list[tuple[ErasureStatus | None, Erasure]] = [(None, filed)]
            case e.ErasureMoved(erasure_id=erasure_id, status=status):
                moves = [(known[erasure_id].status, replace(known[erasure_id], status=status))]
            case _:
                moves = []
        for source, moved in moves:
            allowed = is_allowed(source, moved.status, type(message), is_duplicate=moved.duplicate_of is not None)
            assert allowed, f"a move that is not in the table: {source} to {moved.status} by {type(message).__name__}"
            known[moved.id] = moved


def fence_is_exact(world: World, before: State, after: State, erasure_id: UUID) -> None:
    """The cohorts that contain a leaver are cut back to clean models; every other one is left alone."""
    leavers = {s.client_id: s.name for s in after.subjects.values() if s.erasure_id == erasure_id}
    leavers = {c: name for c, name in leavers.items() if before.clients[c].status != "erased"}
    names, stay = set(leavers.values()), after.erasures[erasure_id].scope == "samples"
    for client_id in leavers:
        expected = before.clients[client_id].status if stay else "erased"
        assert after.clients[client_id].status == expected, "a tombstone is missing, or one too many"
    had = {member.cohort_id for member in before.members.values() if member.client_id in leavers}
    first_models = [c for c in before.checkpoints.values() if c.kind == "init"]
    began_with_it = {c.run_id for c in first_models if not names.isdisjoint(world.made_of[c.id])}
    for cohort in before.cohorts.values():
        line = after.affected_cohorts.get((erasure_id, cohort.id))
        if cohort.run_id in began_with_it and cohort.kind != "merge":
            assert after.cohorts[cohort.id].phase == "retired", "a run that began with a leaver's model goes on"
            assert (line is None) == (cohort.phase == "retired"), "a line for each cohort that is retired now"
        elif cohort.kind == "merge":
            _merged_is_cut(world, names, cohort, after)
        elif cohort.id in had and cohort.phase != "retired":
            assert line is not None, "a cohort with a leaver has no line"
            _cohort_is_cut(world, names, cohort, before, after, line, stay)
        else:
            assert line is None, "a cohort without a leaver has a line"
            _cohort_is_left_alone(cohort, before, after)


def _cohort_is_cut(
    world: World, names: set[str], cohort: Cohort, before: State, after: State, line: AffectedCohort, stay: bool
) -> None:
    now = after.cohorts[cohort.id]
    assert now.epoch == cohort.epoch + 1 == line.epoch_after, "a fence did not raise the epoch"
    assert now.num_buffered == 0 and now.awaiting is None, "something is left in a fenced cohort"
    assert not [t for t in after.tasks.values() if t.cohort_id == cohort.id and t.status in OPEN_TASK], (
        "open work in a fenced cohort: a task"
    )
    assert not [r for r in after.rounds.values() if r.cohort_id == cohort.id and r.status == "open"], (
        "open work in a fenced cohort: a round"
    )
    assert not [u for u in after.updates.values() if u.cohort_id == cohort.id and u.status == "buffered"], (
        "open work in a fenced cohort: a buffer"
    )
    remaining = {x.name for x in before.members.values() if x.cohort_id == cohort.id and x.active}
    remaining -= set() if stay else names
    match line.action:
        case "retired":
            assert now.phase == "retired" and now.head_id is None
            assert not remaining or _took_its_place(cohort, remaining, after), "a cohort with members was retired"
        case "rolled-back":
            erased = {client.name for client in before.clients.values() if client.status == "erased"}
            clean = newest_clean(world, before, cohort.head_id, names | erased)
            assert now.head_id == (clean.id if clean else None), "the head at the fence is not the newest clean model"
            assert remaining, "rolled back for nobody"
        case "unlearned":
            assert now.head_id is None and now.unlearning is not None, "a method begins with a served model"
            assert not names.isdisjoint(world.made_of[cohort.head_id or cohort.id]), "nothing to unlearn"
            assert remaining, "unlearned for nobody"
        case "re-initialised":
            assert now.head_id is None and line.sources, "re-initialised from nothing"
            for source in line.sources:
                checkpoint = before.checkpoints[source.checkpoint_id]
                members = {x.name for x in before.members.values() if x.cohort_id == checkpoint.cohort_id}
                assert members.isdisjoint(names), "re-initialised from a cohort with a leaver"
                own = {x.name for x in before.members.values() if x.cohort_id == cohort.id}
                assert members <= own, "re-initialised from a cohort that is not inside"
                assert names.isdisjoint(world.made_of[checkpoint.id]), "re-initialised from a leaver's data"
    if after.runs[cohort.run_id].status in ENDED:
        assert now.phase in ("finished", "retired"), "an ended run goes on"


def _took_its_place(cohort: Cohort, remaining: set[str], after: State) -> bool:
    """Whether a cohort inside it has the same members and now hangs where it did, or higher."""
    members = {c.id: {x.name for x in after.members.values() if x.cohort_id == c.id and x.active} for c in
               after.cohorts.values() if c.run_id == cohort.run_id and c.phase != "retired"}  # fmt: skip
    heirs = [after.cohorts[c] for c, names in members.items() if names == remaining and c != cohort.id]
    return any(heir.parent_id in members for heir in heirs)


def _cohort_is_left_alone(cohort: Cohort, before: State, after: State) -> None:
    now = after.cohorts[cohort.id]
    if (cohort.program_state or {}).get("phase") == "measuring" and now.epoch == cohort.epoch + 1:
        return  # a newcomer that was being compared with a leaver
    for name in ("head_id", "head_digest", "epoch", "round", "phase", "awaiting", "num_buffered", "num_members"):
        assert getattr(now, name) == getattr(cohort, name), f"{name} of a cohort without a leaver changed"
    for table in ("tasks", "rounds", "updates"):
        for row in getattr(before, table).values():
            assert row.cohort_id != cohort.id or getattr(after, table)[row.id] == row, f"{table} of another cohort"


def _merged_is_cut(world: World, names: set[str], merged: Cohort, after: State) -> None:
    now = after.cohorts[merged.id]
    if merged.head_digest is not None and not names.isdisjoint(world.made_of[merged.head_id or merged.id]):
        assert now.head_id is None and now.epoch == merged.epoch + 1, "a tainted merged model is still served"
    elif now.head_id is None and merged.head_id is not None:
        heads = [c.head_id for c in after.cohorts.values() if c.run_id == merged.run_id and c.parent_id is None]
        trained = [c for c in heads if c is not None and after.checkpoints[c].round > 0]
        assert not trained, "a clean merged model is gone"  # with none left, it goes with what it was made of
    else:
        assert now.head_id == merged.head_id, "a clean merged model is gone"


def joining_leaves_the_others_alone(before: State, after: State) -> None:
    """A cohort gains the newcomer and goes on; every other one stays as it is, wherever it now hangs."""
    new = {key: x for key, x in after.members.items() if key not in before.members}
    gaining = {x.cohort_id for x in new.values()}
    assert all(after.members[key] == x for key, x in before.members.items()), "a member changed"
    for cohort in before.cohorts.values():
        now = after.cohorts[cohort.id]
        if cohort.kind == "profile":
            assert now.phase in (cohort.phase, "retired"), "a profile went on"
            continue
        same: dict[str, Any] = {"parent_id": cohort.parent_id}
        if cohort.id in gaining:
            same |= {"num_members": cohort.num_members, "num_clients_of_run": cohort.num_clients_of_run}
            assert cohort.phase in ("starting", "waiting", "asking", "computing"), "joined what trains no more"
        assert replace(now, **same) == cohort, "a cohort did not go on as it was"
    for cohort in after.cohorts.values():
        if cohort.id not in before.cohorts:
            assert any(x.joined for x in new.values() if x.cohort_id == cohort.id), "formed without a newcomer"
            own = {x.client_id for x in new.values() if x.cohort_id == cohort.id}
            for source in cohort.sources:
                origin = after.checkpoints[source.checkpoint_id].cohort_id
                inside = {x.client_id for x in after.members.values() if x.cohort_id == origin}
                assert inside <= own, "a new cohort starts from one that is not inside"
    for table in ("tasks", "rounds", "updates", "checkpoints"):
        assert getattr(before, table) == getattr(after, table), f"{table} changed"


def newest_clean(world: World, state: State, head_id: UUID | None, names: set[str]) -> Checkpoint | None:
    """Among a head and its bases, the newest that the clients' data never reached."""
    checkpoint = state.checkpoints[head_id] if head_id is not None else None
    clean: list[Checkpoint] = []
    while checkpoint is not None:
        if names.isdisjoint(world.made_of[checkpoint.id] | world.clients_in(checkpoint)):
            clean.append(checkpoint)
        checkpoint = state.checkpoints[checkpoint.base_id] if checkpoint.base_id is not None else None
    return max(clean, key=lambda c: c.round, default=None)


def group_opens_together(before: State, cohort_id: UUID, message: m.Message[Any]) -> None:
    """A training round of a lock-step cohort opens when nobody in its group is still at work on an earlier one."""
    cohort = before.cohorts[cohort_id]
    if not cohort.is_lockstep or cohort.unlearning is not None:  # a method asks for its own rounds
        return
    assert isinstance(message, m.OpenRounds), "a lock-step round opened by itself"
    assert before.runs[cohort.run_id].status == "running", "a round opened in a run that does not run"
    group = [c for c in before.cohorts.values() if (c.run_id, c.group) == (cohort.run_id, cohort.group)]
    phases = {c.phase for c in group if c.is_lockstep}
    assert phases <= {"waiting", "finished", "failed", "retired"}, f"opened while others are {phases}"


def merged_model_has_it(after: State, cohort_id: UUID) -> None:
    """A recovered line is in the merged model of a run that goes on, or in the one being made."""
    cohort = after.cohorts[cohort_id]
    run, merged = after.runs[cohort.run_id], families.merged_cohort(after, cohort.run_id)
    is_source = cohort.parent_id is None and cohort.phase != "retired" and cohort.head_id and cohort.round > 0
    if merged is None or run.status in ENDED or not is_source or getattr(run.spec.topology, "merge", "") == "best":
        return
    being_made_of = {source.checkpoint_id for source in merged.sources}
    made_of = {p.parent_id for p in after.parents.values() if p.checkpoint_id == merged.head_id}
    assert cohort.head_id in (being_made_of or made_of), "a line recovered and the merged model is the old one"


def line_is_done(after: State, line: AffectedCohort) -> None:
    cohort, run = after.cohorts[line.cohort_id], after.runs[line.run_id]
    reached = cohort.head_id is not None and cohort.round >= line.target_round
    assert reached or cohort.phase in ("finished", "retired") or run.status in GIVEN_UP, "done before it was"
