"""What must hold in every state that the engine can reach: one law a function, asserted over the whole world.
What must hold of single decisions (a fence, the opening of a round) is in `transitions`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterable
from itertools import pairwise
from uuid import UUID

from coordinator.engine.entities import ENDED, OPEN_TASK, SETTLED, AffectedCohort, Checkpoint, Cohort, Erasure, Round
from coordinator.engine.erasure import cuts, fallback
from coordinator.engine.events import CheckpointPublished
from coordinator.store.codecs import CODECS
from services.training.exact_fun.spec import ExactFun
from services.training.fats.spec import Fats
from services.training.fedbuff.spec import FedBuff
from tests.support.world import World


def all_hold(world: World) -> None:
    nothing_is_there_twice(world)
    counters_are_true(world)
    heads_are_published_models(world)
    rounds_only_move_forward(world)
    nothing_passes_a_fence(world)
    nothing_stands_on_what_was_given_up(world)
    no_erased_sample_is_served(world)
    requests_are_carried_out_once_and_wholly(world)
    guarantees_are_those_of_what_was_done(world)
    merged_models_are_made_of_what_is_served(world)
    families_are_laminar(world)
    ended_runs_have_no_open_work(world)
    those_who_left_have_no_work(world)
    nobody_waits_for_nothing(world)


def _twice(keys: Iterable[Hashable]) -> list[Hashable]:
    return [key for key, count in Counter(keys).items() if count > 1]


def nothing_is_there_twice(world: World) -> None:
    """The constraints that the database keeps, and that no update is counted twice."""
    state = world.state
    assert not _twice((r.cohort_id, r.epoch, r.number, r.kind) for r in state.rounds.values()), "a round ran twice"
    assert not _twice((t.round_id, t.client_id) for t in state.tasks.values()), "a client was asked twice in a round"
    open_tasks = [t for t in state.tasks.values() if t.status in OPEN_TASK]
    assert not _twice((t.cohort_id, t.client_id, t.kind) for t in open_tasks), "a client has two open tasks of a kind"
    assert not _twice(u.task_id for u in state.updates.values()), "a task has two results"
    assert not _twice((c.cohort_id, c.epoch, c.round) for c in state.checkpoints.values()), "a round published twice"
    models = {c.id for c in state.checkpoints.values() if c.superseded_by is None and c.kind != "forgotten"}
    counted = (c.update_id for c in state.contributions.values() if c.checkpoint_id in models)
    assert not _twice(counted), "an update is in two checkpoints"
    assert not _twice((c.checkpoint_id, c.client_id) for c in state.contributions.values()), "a client counted twice"
    waiting = [u for u in state.updates.values() if u.status == "buffered" and state.rounds[u.round_id].is_stream]
    assert not _twice((u.cohort_id, u.client_id) for u in waiting), "a client is in a buffer twice"
    under_way = [s.client_id for s in state.subjects.values() if s.active]
    assert not _twice(under_way), "two requests forget the same client"


def counters_are_true(world: World) -> None:
    state = world.state
    for round in state.rounds.values():
        if round.status != "open":
            continue
        tasks = Counter(t.status for t in state.tasks.values() if t.round_id == round.id)
        assert round.num_open == sum(tasks[status] for status in OPEN_TASK), "num_open"
        assert round.num_failed == tasks["failed"], "num_failed"
        if not round.is_stream:
            assert round.num_received == tasks["done"], "num_received"
            assert round.num_selected == round.num_open + round.num_received + round.num_failed, "num_selected"
    for cohort in state.cohorts.values():
        members = [member for member in state.members.values() if member.cohort_id == cohort.id and member.active]
        assert cohort.num_members == len(members), "num_members"
        own = [u for u in state.updates.values() if u.cohort_id == cohort.id and u.status == "buffered"]
        assert all(u.epoch == cohort.epoch for u in own), "an update of an older epoch waits to be used"
        assert cohort.num_buffered == sum(state.rounds[u.round_id].is_stream for u in own), "num_buffered"
        assert json.loads(json.dumps(cohort.program_state)) == cohort.program_state, "the program cannot be stored"
        _can_be_stored(cohort)
    for affected in state.affected_cohorts.values():
        _can_be_stored(affected)
    for run in state.runs.values():
        cohorts = {c.id for c in state.cohorts.values() if c.run_id == run.id}
        clients = {member.client_id for member in state.members.values() if member.cohort_id in cohorts}
        assert run.num_clients == sum(state.clients[c].status != "erased" for c in clients), "num_clients"


def checkpoint_is_what_its_lineage_says(world: World, checkpoint: Checkpoint) -> None:
    """Asked once of each: what is published does not change any more."""
    has_forgotten = any(c.forgets for c in world.state.checkpoints.values())
    said, true = world.clients_in(checkpoint), world.made_of[checkpoint.id]
    # A method may begin with an older model than the one that it is said to mend.
    assert true <= said if has_forgotten else true == said, "the lineage is not the truth"
    assert (checkpoint.kind in ("aggregate", "forgotten")) == (checkpoint.base_id is not None), "stands on a base"
    has_parents = checkpoint.kind in ("reinit", "merge")
    assert has_parents == bool(world.parents(checkpoint.id)), "merged and re-initialised models have parents"
    for step, base in pairwise(world.lineage(checkpoint)):
        is_next = step.round == base.round + 1 and step.epoch >= base.epoch
        assert is_next or step.kind == "forgotten", "a base is one round before"
    _contributions_are_right(world, checkpoint)


def _can_be_stored(entity: Cohort | AffectedCohort) -> None:
    for name, codec in CODECS[type(entity)].items():
        value = getattr(entity, name)
        read = codec.read(json.loads(json.dumps(codec.write(value)))) if value is not None else None
        assert read == value, f"{name} cannot be stored"


def heads_are_published_models(world: World) -> None:
    state = world.state
    for cohort in state.cohorts.values():
        head = state.checkpoints[cohort.head_id] if cohort.head_id is not None else None
        assert (head.digest if head else None) == cohort.head_digest, "head"
        if head is not None and cohort.kind != "merge":
            assert head.round == cohort.round, "round of the head"
        assert head is None or head.cohort_id == cohort.id, "head of another cohort"


def _contributions_are_right(world: World, checkpoint: Checkpoint) -> None:
    state = world.state
    training = state.runs[checkpoint.run_id].spec.training
    contributions = world.contributions(checkpoint)
    names = [state.clients[c.client_id].name for c in contributions]
    assert names == sorted(names), "contributions are in the order of the clients' names"
    consumers = set()
    models = {(step.round, step.digest) for step in world.lineage(checkpoint)}
    if checkpoint.kind == "forgotten":
        _calibration_is_right(world, checkpoint)
        return
    for contribution in contributions:
        update = state.updates[contribution.update_id]
        assert update.client_id == contribution.client_id, "a contribution has its update's client"
        assert update.cohort_id == checkpoint.cohort_id, "an update of another cohort is in a checkpoint"
        is_of_epoch = update.epoch == checkpoint.epoch or isinstance(training, ExactFun)
        assert is_of_epoch, "an update of another epoch is in a checkpoint"
        assert update.status == "consumed", "a counted update may be counted again"
        assert (update.base_round, update.base_digest) in models, "trained from a model that is no ancestor"
        staleness = checkpoint.round - 1 - update.base_round
        assert contribution.staleness == staleness >= 0, "staleness"
        exponent = training.staleness_exponent if isinstance(training, FedBuff) else 0.0
        num_samples = 1 if isinstance(training, Fats) else update.num_samples
        assert contribution.weight == num_samples * (1.0 + staleness) ** -exponent, "weight"
        consumers.add(update.consumed_by)
    if checkpoint.kind == "aggregate" and not contributions:
        assert state.cohorts[checkpoint.cohort_id].is_lockstep or world.left_out, "a round without an answer"
        assert state.checkpoints[checkpoint.base_id or UUID(int=0)].digest == checkpoint.digest, "made of nothing"
    elif checkpoint.kind == "aggregate":
        (consumer,) = consumers
        assert consumer is not None
        round = state.rounds[consumer]
        assert round.number == checkpoint.round, "made from another round"
        if isinstance(training, ExactFun) and round.epoch < checkpoint.epoch:
            return  # it stands without those who left
        assert round.epoch == checkpoint.epoch, "made from another epoch"
        num_members = state.cohorts[checkpoint.cohort_id].num_members
        needed = min(round.quorum, num_members) if round.is_stream else round.quorum
        consumed = [u for u in state.updates.values() if u.consumed_by == consumer]
        assert len(consumed) == round.num_received >= needed, "closed below its quorum"
        silently = {u.id for u in consumed} - world.left_out - {c.update_id for c in contributions}
        assert not silently, "a received update was left out"
        assert all(c.update_id not in world.left_out for c in contributions), "what was left out is in the model"


def _calibration_is_right(world: World, checkpoint: Checkpoint) -> None:
    """Those whom a method forgets take part only by what it asks of them for that."""
    for contribution in world.contributions(checkpoint):
        is_forgotten = str(contribution.client_id) in checkpoint.forgets
        kind = world.state.updates[contribution.update_id].kind
        assert not is_forgotten or kind != "train", "made of what it forgets"


def rounds_only_move_forward(world: World) -> None:
    newest: dict[tuple[UUID, int], int] = {}
    for event in world.events:
        if isinstance(event, CheckpointPublished):
            checkpoint = event.checkpoint
            line = checkpoint.cohort_id, checkpoint.epoch
            assert checkpoint.round > newest.get(line, -1), "a round was published again"
            newest[line] = checkpoint.round


def nothing_passes_a_fence(world: World) -> None:
    """After the fence of a client, no model that is served or being made has its data in it."""
    state = world.state
    erased = {client.name for client in state.clients.values() if client.status == "erased"}
    for cohort in state.cohorts.values():
        if cohort.head_id is not None:
            assert cohort.phase != "retired", "a retired cohort serves a model"
            head = state.checkpoints[cohort.head_id]
            assert head.superseded_by is None, "a superseded model is served"
            assert erased.isdisjoint(world.made_of[head.id]), "served after its fence"
        for source in cohort.sources:
            assert erased.isdisjoint(world.provenance[source.digest]), "a model is made of one with an erased client"
    gone = _erased_samples(world)
    told = {name for r in state.erasures.values() if r.fenced_at is not None for name in r.samples}
    mended = _stand_on_mended_models(world)
    for checkpoint in state.checkpoints.values():
        is_tainted = not erased.isdisjoint(world.made_of[checkpoint.id])
        is_tainted |= not gone.isdisjoint(world.samples_made_of[checkpoint.id])
        is_superseded = checkpoint.superseded_by is not None
        was_given_up = is_superseded and checkpoint.id in mended  # its method, or its audit
        # Whoever confirmed its samples left them out already before the fence: what it made since then goes, too.
        was_left_out = not told.isdisjoint(world.made_of[checkpoint.id])
        assert is_superseded or not is_tainted, "a tainted model is not superseded"
        assert is_tainted or not is_superseded or was_given_up or was_left_out, "a clean model is superseded"
    for task in state.tasks.values():
        if task.status in OPEN_TASK:
            cohort, client = state.cohorts[task.cohort_id], state.clients[task.client_id]
            assert task.epoch == cohort.epoch, "work of an older epoch is still open"
            is_needed = client.needed_by is not None and task.work is not None
            assert task.client_name not in erased or is_needed, "asked after its fence"
            is_clean = erased.isdisjoint(world.provenance[task.model_digest])
            assert is_clean or cohort.unlearning is not None, "training from a tainted model"
    for line in state.affected_cohorts.values():
        assert state.cohorts[line.cohort_id].epoch >= line.epoch_after, "an epoch went back"
    for member in state.members.values():
        is_over = state.cohorts[member.cohort_id].phase == "retired"
        assert is_over or member.name not in erased or not member.active, "an erased client is a member"


def _stand_on_mended_models(world: World) -> set[UUID]:
    """The models that a method made to forget somebody, and all that were made of them since."""
    found = {c.id for c in world.state.checkpoints.values() if c.kind == "forgotten"}
    above = world.above() if found else {}
    num_known = 0
    while num_known < len(found):
        num_known = len(found)
        found |= {model for model, made_of in above.items() if not found.isdisjoint(made_of)}
    return found


def nothing_stands_on_what_was_given_up(world: World) -> None:
    """No model that may be served was made of a superseded one, in whichever cohort or run; but for what a method made
    of one to forget somebody in it."""
    state = world.state
    for checkpoint in state.checkpoints.values():
        if checkpoint.superseded_by is not None or checkpoint.kind == "forgotten":
            continue
        above = {parent.parent_id for parent in world.parents(checkpoint.id)}
        above |= {checkpoint.base_id} if checkpoint.base_id is not None else set()
        assert all(state.checkpoints[c].superseded_by is None for c in above), "stands on a model that was given up"
        same = [c for c in state.checkpoints.values() if c.digest == checkpoint.digest and c.kind != "init"]
        if checkpoint.kind == "init" and (older := [c for c in same if c.created_at <= checkpoint.created_at]):
            assert any(c.superseded_by is None for c in older), "began with a model that was given up"
    for cohort in state.cohorts.values():
        for source in cohort.sources if cohort.phase in BUSY else ():
            gone = state.checkpoints[source.checkpoint_id].superseded_by is not None
            assert not gone, "is being made of a model that was given up"


BUSY = ("starting", "waiting", "asking", "computing")


def _erased_samples(world: World) -> set[str]:
    fenced = [r.samples for r in world.state.erasures.values() if r.fenced_at is not None]
    return {f"{name}#{row}" for samples in fenced for name, rows in samples.items() for row in rows}


def no_erased_sample_is_served(world: World) -> None:
    """After the fence of a sample, no model that is served, trained on or being made has it in it."""
    state, gone = world.state, _erased_samples(world)
    models = {cohort.head_digest for cohort in state.cohorts.values() if cohort.head_digest is not None}
    models |= {source.digest for cohort in state.cohorts.values() for source in cohort.sources}
    models |= {task.model_digest for task in state.tasks.values() if task.status in OPEN_TASK}
    models |= {u.digest for u in state.updates.values() if u.status == "buffered" and u.digest is not None}
    for digest in models:
        assert gone.isdisjoint(world.samples_in.get(digest, ())), "a sample is served after its fence"
    for client in state.clients.values():
        ordered = {row for x in state.exclusions.values() if x.client_id == client.id for row in x.samples}
        if client.status == "active" and client.exclusions_acked is not None:
            is_held = ordered <= world.ledgers.get(client.name, set())
            assert is_held or client.exclusions != client.exclusions_acked, "acknowledged and not in the ledger"


def requests_are_carried_out_once_and_wholly(world: World) -> None:
    state = world.state
    for erasure in state.erasures.values():
        subjects = [s for s in state.subjects.values() if s.erasure_id == erasure.id]
        lines = [line for line in state.affected_cohorts.values() if line.erasure_id == erasure.id]
        is_own = erasure.duplicate_of is None
        is_barring = is_own and erasure.status not in SETTLED and erasure.scope == "client"
        assert all(s.active == is_barring for s in subjects), "subjects of a request"
        assert (erasure.id in state.certificates) == (is_own and erasure.status == "completed"), "certificates"
        assert erasure.status != "requires_action" or erasure.reason, "stuck without a reason"
        assert all(line.clean_at is not None for line in lines if line.done_at is not None), "done and not clean"
        if is_own and erasure.status not in SETTLED:
            for line in lines:
                _line_is_what_its_cohort_does(world, line)
        is_unwritten = erasure.status == "requires_action" and erasure.fenced_at is None  # its tombstone
        has_asked = erasure.scope == "samples" and erasure.status == "failed"  # for samples that are not there
        if is_own and not is_unwritten:
            is_after = erasure.status in AFTER_THE_FENCE
            assert (erasure.fenced_at is not None) == is_after or has_asked, "fenced without a fence"
        elif is_own:
            assert not lines, "cut without a fence"
        else:
            _ends_with(erasure, state.erasures[erasure.duplicate_of or UUID(int=0)])
            assert not lines, "carried out twice"
        if erasure.status in ("verifying", "completed") and is_own:
            assert all(line.done_at is not None for line in lines), "completed with an open line"
            statuses = {state.clients[s.client_id].status for s in subjects}
            ordered = [x for x in state.exclusions.values() if x.erasure_id == erasure.id and x.acked_at is None]
            if erasure.scope == "client":
                assert statuses == {"erased"}, "completed without a tombstone"
            elif statuses == {"active"}:
                assert not ordered, "completed without an acknowledgement"


def _line_is_what_its_cohort_does(world: World, line: AffectedCohort) -> None:
    """Also after another erasure has cut the same cohort."""
    state = world.state
    erased = {client.name for client in state.clients.values() if client.status == "erased"}
    assert line.epoch_after == state.cohorts[line.cohort_id].epoch, "a line of an epoch that is over"
    for digest in [line.rollback_digest, *(source.digest for source in line.sources)]:
        assert digest is None or erased.isdisjoint(world.provenance[digest]), "goes on from an erased client's model"


AFTER_THE_FENCE = ("fenced", "executing", "verifying", "completed", "requires_action")


def _ends_with(duplicate: Erasure, original: Erasure) -> None:
    assert original.duplicate_of is None, "a duplicate of a duplicate"
    expected = original.status if original.status in SETTLED else "received"
    assert duplicate.status == expected, "a duplicate ends with its original"


def guarantees_are_those_of_what_was_done(world: World) -> None:
    """A certificate says exact only where nothing stands on what the request's method made, and what its method made
    has passed the audit that it asked for, whoever cut the cohort meanwhile."""
    state = world.state
    for line in state.affected_cohorts.values():
        erasure, cohort = state.erasures[line.erasure_id], state.cohorts[line.cohort_id]
        if erasure.status != "completed" or cohort.head_id is None:
            continue
        if line.action == "unlearned":
            is_audited = line.audit is not None and line.audit.passed
            assert is_audited or erasure.audit is None, "certified without its audit"
            continue
        forgotten = {str(s.client_id) for s in state.subjects.values() if s.erasure_id == erasure.id}
        made = [one.id for one in state.checkpoints.values() if not forgotten.isdisjoint(one.forgets)]
        assert not made or cohort.head_id not in cuts.made_of(state, made), "exact, on what a method made"


def merged_models_are_made_of_what_is_served(world: World) -> None:
    """Once a run is completed, its merged model is made of the newest models of its lines."""
    state = world.state
    for merged in state.cohorts.values():
        run = state.runs[merged.run_id]
        if merged.kind != "merge" or run.status != "completed":
            continue
        served = {c.head_id for c in state.cohorts.values() if c.run_id == run.id and c.parent_id is None} - {None}
        trained = {c for c in served if c != merged.head_id and state.checkpoints[c].round > 0}  # type: ignore[index]
        made_of = {p.parent_id for p in world.parents(merged.head_id)}
        if getattr(run.spec.topology, "merge", "") == "best":
            assert made_of <= trained and len(made_of) == min(1, len(trained)), "merged from others than the best"
        else:
            assert made_of == trained, "a merged model is not made of what is served"


def families_are_laminar(world: World) -> None:
    """What is below another cohort has no member that the other lacks; clusters keep to their bounds."""
    state = world.state
    names: dict[UUID, set[str]] = {c: set() for c in state.cohorts}
    for member in state.members.values():
        names[member.cohort_id].add(member.name)
    for cohort in state.cohorts.values():
        if cohort.parent_id is not None and cohort.phase != "retired":
            assert names[cohort.id] <= names[cohort.parent_id], "a cohort is not inside its parent"
            is_empty = cohort.num_members == 0
            assert is_empty or state.cohorts[cohort.parent_id].phase != "retired", "hangs below a cohort that is gone"
            assert state.cohorts[cohort.parent_id].group == cohort.group, "hangs in another group"
    for run in state.runs.values():
        tops = [c for c in state.cohorts.values() if c.run_id == run.id and c.kind in ("line", "root")]
        most = getattr(run.spec.topology, "max_size", None)
        assert most is None or all(c.num_members <= most for c in tops), "a cluster is larger than it may be"


def ended_runs_have_no_open_work(world: World) -> None:
    state = world.state
    ended = {run.id for run in state.runs.values() if run.status in ENDED}
    assert not [t for t in state.tasks.values() if t.run_id in ended and t.status in OPEN_TASK], (
        "an ended run has open work: a task"
    )
    assert not [r for r in state.rounds.values() if r.run_id in ended and r.status == "open"], (
        "an ended run has open work: a round"
    )
    jobs = [j for j in state.jobs.values() if j.run_id in ended and j.kind == "kernel"]
    assert not [j for j in jobs if j.status in ("ready", "leased")], "an ended run has open work: a kernel"


def those_who_left_have_no_work(world: World) -> None:
    state = world.state
    gone = {(m.cohort_id, m.client_id) for m in state.members.values() if not m.active}
    for task in state.tasks.values():
        is_needed = state.clients[task.client_id].needed_by is not None and task.work is not None
        has_left = (task.cohort_id, task.client_id) in gone and not is_needed
        assert task.status not in OPEN_TASK or not has_left, "asked after it left"
        assert task.status != "leased" or (task.lease_token and task.due_at), "a lease without a token or an end"


def nobody_waits_for_nothing(world: World) -> None:
    """A program of a living run waits for its group, an open round that somebody may answer, or an open job."""
    state = world.state
    posted = {run_id: set[str]() for run_id in state.runs}
    for job in state.jobs.values():
        if job.run_id is not None and job.kind == "post" and job.status in ("ready", "leased"):
            posted[job.run_id].add(job.params["message"])
    for run in state.runs.values():
        phases = {c.phase for c in state.cohorts.values() if c.run_id == run.id} - {"retired"}
        if any(r.run_id == run.id and r.kind == "audit" and r.status == "open" for r in state.rounds.values()):
            continue
        if run.status not in ENDED and (phases <= {"finished"} or "failed" in phases):
            assert "SettleRun" in posted[run.id], "the cohorts have ended and nobody is told"
    for cohort in state.cohorts.values():
        run = state.runs[cohort.run_id]
        if run.status in ENDED:
            continue
        if cohort.phase in ("finished", "failed", "retired", "waiting"):
            assert cohort.awaiting is None, "waits after its end, or for a group and for something else"
            is_held = fallback.gave_up(cohort)  # the request says why, and waits for a person
            assert (cohort.phase == "waiting") <= bool(cohort.pending or is_held), "waits for a round that nobody wants"
            continue
        assert cohort.awaiting is not None, "a living program waits for nothing"
        if awaited := state.jobs.get(cohort.awaiting):
            assert cohort.phase == "computing" and awaited.epoch == cohort.epoch, "waits for another line's job"
            assert awaited.status in ("ready", "leased"), "waits for a job that is over"
            continue
        round = state.rounds[cohort.awaiting]
        assert (cohort.phase, round.status, round.epoch) == ("asking", "open", cohort.epoch), "waits for a closed round"
        assert not _is_complete(cohort, round), "waits for a complete round"
        if not _may_be_answered(world, cohort, round) and not (round.close_at_deadline and round.due_at is not None):
            assert run.status == "paused" or "PauseRun" in posted[run.id], "waits for answers that nobody can give"
            assert round.num_failed, "waits for an operator although no client failed"


def _is_complete(cohort: Cohort, round: Round) -> bool:
    if round.is_stream:
        return cohort.num_buffered >= round.quorum
    return round.num_received >= round.quorum and (round.num_open == 0 or round.waiting_for_quorum)


def _may_be_answered(world: World, cohort: Cohort, round: Round) -> bool:
    tasks = [t for t in world.state.tasks.values() if t.cohort_id == cohort.id and t.kind == round.kind]
    return any(t.status in ("ready", "leased") and (round.is_stream or t.round_id == round.id) for t in tasks)
