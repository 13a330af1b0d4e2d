"""Engines with one law broken on purpose, by changing the text of a function: the machine must notice each."""

from __future__ import annotations
import __future__

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from textwrap import dedent
from types import CodeType
from typing import Any, Final

from coordinator.engine import asking, decide, evolve, families, joining, programs, runs, work
from coordinator.engine.erasure import completion, cuts, cutting, fallback, fence, filing, review, samples
from services.topology import knot
from tests.support import world

Edit = tuple[Callable[..., Any], str, str]


@dataclass(frozen=True)
class Mutant:
    name: str
    law: str
    """What the law says that it breaks: it counts as killed only by this."""
    walk: int
    """The seed of a walk that notices it. Any change of the rules shuffles the walks: then others are tried as well."""
    edits: tuple[Edit, ...]


def mutant(name: str, law: str, walk: int, *edits: Edit) -> Mutant:
    return Mutant(name, law, walk, edits)


MUTANTS: Final = (
    mutant(
        "fence dropped at claim, submission and revocation",
        "open work in a fenced cohort",
        321,
        (work._refusal, "task.epoch != cohort.epoch", "False"),
        (work.claim_tasks, " or cohort.epoch != task.epoch", ""),
        (runs.end_work, "draft.revoke([task for task in draft.open_tasks(cohort.id) if task.kind != spares])", "pass"),
    ),
    mutant(
        "fence dropped at submission, revoked work accepted",
        "a fenced update was refused for something else",
        6,
        (work._refusal, "task.epoch != cohort.epoch", "False"),
        (work._refusal, '("leased", "ready")', '("leased", "ready", "revoked")'),
    ),
    mutant(
        "fence dropped at compute",
        "a kernel of a fenced line was leased",
        746,
        (decide._leased_job, "job.epoch != cohort.epoch or cohort.awaiting != job.id", "False"),
        (runs.end_work, "_cancel_jobs(draft, cohort_id=cohort.id)", "pass"),
        (world.is_wanted, " and state.cohorts[job.cohort_id].epoch == job.epoch", ""),
    ),
    mutant(
        "result of a kernel from before the fence accepted",
        "a result from before a fence was accepted",
        27,
        (decide._leased_job, "job.epoch != cohort.epoch or cohort.awaiting != job.id", "False"),
        (runs.end_work, "_cancel_jobs(draft, cohort_id=cohort.id)", "pass"),
    ),
    mutant(
        "rollback skipped at the fence",
        "the head at the fence is not the newest clean model",
        321,
        (cuts.newest_clean, " and (checkpoint.id in tainted or checkpoint.superseded_by is not None)", " and False"),
    ),
    mutant(
        "rollback stops at the first model that the client did not answer",
        "the head at the fence is not the newest clean model",
        308,
        (cuts._made_of, "above if checkpoint.base_id is None else (*above, checkpoint.base_id)", "above"),
    ),
    mutant(
        "rollback goes to the beginning",
        "the head at the fence is not the newest clean model",
        321,
        (cuts.newest_clean, "checkpoint.id in tainted", "(checkpoint.id in tainted or checkpoint.base_id)"),
    ),
    mutant(
        "buffered updates survive the fence",
        "something is left in a fenced cohort",
        622,
        (runs.stop_cohort, "if buffered:", "if False:"),
        (evolve._fresh_program, '"num_buffered": 0,', ""),
        (programs.answers_to, " and u.epoch == round.epoch", ""),
    ),
    mutant(
        "epoch not raised",
        "a fence did not raise the epoch",
        321,
        (cutting._cut_cohort, "CohortFenced(cohort.id, cohort.epoch + 1", "CohortFenced(cohort.id, cohort.epoch"),
    ),
    mutant(
        "fenced client stays a member",
        "asked after its fence",
        321,
        (cutting.cut_run, "and member.active:", "and not member.active:"),
    ),
    mutant(
        "cohorts without the leaver are cut as well",
        "a cohort without a leaver has a line",
        321,
        (cuts.plan, "for c in lines if c.id in had", "for c in lines if had"),
    ),
    mutant(
        "taint ignores parents",
        "the head at the fence is not the newest clean model",
        17,
        (cuts._made_of, "below.setdefault(edge.parent_id, []).append(edge.checkpoint_id)", "pass"),
    ),
    mutant(
        "re-initialised from a cohort with the leaver",
        "re-initialised from a cohort with a leaver",
        6,
        (cuts._surviving, "if cut is None:", "if True:"),
    ),
    mutant(
        "cohorts cut before those inside them",
        "re-initialised from a cohort with a leaver",
        321,
        (cuts.plan, "(size[c.id],", "(-size[c.id],"),
    ),
    mutant(
        "size of a cohort taken without those who left",
        "a source without a model",
        746,
        (cuts.plan, "(size[c.id],", "(c.num_members,"),
    ),
    mutant(
        "heir of a retired cohort not moved",
        "a cohort with members was retired",
        380,
        (cutting.cut_run, "draft.emit(e.CohortMoved(cohort_id, parent_id))", "pass"),
    ),
    mutant(
        "tainted models stay servable",
        "a tainted model is not superseded",
        321,
        (cutting.supersede, "draft.emit(e.CheckpointsSuperseded(served, erasure_id))", "pass"),
    ),
    mutant(
        "what stands on a model that was given up stays",
        "stands on a model that was given up",
        4,
        (fallback._given_up, "cuts.made_of(state, made)", "frozenset(made)"),
    ),
    mutant(
        "merged model with the leaver stays",
        "a tainted merged model is still served",
        380,
        (cutting._fence_merged, "not is_tainted and not lost and planned.isdisjoint(cut.tainted)", "True"),
    ),
    mutant(
        "merge under way goes on with the leaver",
        "a model is made of one with an erased client",
        4,
        (cutting._fence_merged, " and planned.isdisjoint(cut.tainted)", ""),
    ),
    mutant(
        "merged model not refreshed",
        "merged from others than the best",
        321,
        (families.refresh_merge, "_is_made_of(draft.state, merged, wanted)", "merged.head_id is not None"),
    ),
    mutant(
        "ended run waits for its merge",
        "a request is stuck",
        20379,
        (families.is_merging, " and run.status not in ENDED", ""),
    ),
    mutant(
        "completed run not opened again",
        "an ended run goes on",
        380,
        (cutting.cut_run, 'run.status == "completed" and (merging', "False and (merging"),
    ),
    mutant(
        "nobody is told that the last cohort was retired",
        "the cohorts have ended and nobody is told",
        380,
        (cutting.cut_run, 'any(one.action == "retired" for one in cut.cuts)', "False"),
    ),
    mutant(
        "erasure completed with an open line",
        "completed with an open line",
        321,
        (review.review_erasure, "all(one.done_at is not None for one in affected)", "True"),
    ),
    mutant(
        "a run that began with a leaver's model goes on",
        "a run that began with a leaver's model goes on",
        380,
        (cuts._made_of, "_models_started_from(checkpoint, same[checkpoint.digest])", "[]"),
    ),
    mutant(
        "a run begins with a superseded model",
        "served after its fence",
        18,
        (runs._check_named, "(federation_id, init) in state.superseded", "False"),
        (runs._is_served, " and c.superseded_by is None and c.stored", ""),
    ),
    mutant(
        "erased client uploads",
        "uploaded after its fence",
        308,
        (decide._record_blob, "work.working_client(draft, message.client_id)", "pass"),
    ),
    mutant(
        "upload for another task counts",
        "submitted what was not uploaded for the task",
        340,
        (work._check_result, "b.origin_id == task.id and ", ""),
    ),
    mutant(
        "superseded bytes are taken again",
        "bytes of a superseded model came back",
        321,
        (decide._checked_whose, "(message.federation_id, message.digest) in draft.state.superseded", "False"),
    ),
    mutant(
        "operator uploads a client's update",
        "an operator uploaded a client's update",
        321,
        (decide._checked_whose, 'any(b.origin == "task" for b in same)', "False"),
    ),
    mutant(
        "run begins with a client's update",
        "a run began with a client's update",
        321,
        (runs.is_uploaded, 'b.origin == "operator" and ', ""),
    ),
    mutant(
        "inventory without what others uploaded for work that was cut off",
        "is left after the purge",
        308,
        (world.World._unsubmitted, " and self._is_cut_off(b)", " and False"),
    ),
    mutant(
        "inventory goes by the marks",
        "is left after the purge",
        88,
        (
            world.World.inventory,
            "[state.checkpoints[c] for c in cuts.tainted_checkpoints(state, frozenset(leavers))]",
            "[c for c in state.checkpoints.values() if c.superseded_by == erasure.id]",
        ),
    ),
    mutant(
        "inventory without what kernels made",
        "is left after the purge",
        321,
        (world.World.inventory, "return [*models, *updates], made,", "return [*models, *updates], [],"),
    ),
    mutant(
        "inventory without uploads",
        "is left after the purge",
        308,
        (world.World._unsubmitted, "is_left(b) and is_lost(b)", "False"),
        (world.World.blobs_of, " or b.client_id in leavers", ""),
    ),
    mutant(
        "inventory without what others trained",
        "is left after the purge",
        321,
        (world.World.inventory, "(u.cohort_id, u.base_digest) in bases", "False"),
    ),
    mutant(
        "refused certificate tried again for ever",
        "tried again without a person",
        1004,
        (review.review_erasure, " or erasure.is_held:", ":"),
    ),
    mutant(
        "failed run holds its request for ever",
        "a request is stuck",
        321,
        (review._review_cohort, " or run.status in GIVEN_UP", ""),
    ),
    mutant(
        "absent clients are not noticed",
        "waits for clients and does not say so",
        783,
        (review._absence, "if not absent or", "if True or"),
    ),
    mutant(
        "merged again whenever a head moves",
        "merged again for no recovered line",
        321,
        (
            review.review_erasure,
            "any(families.is_merging(draft.state, draft.state.runs[one.run_id]) for one in affected)",
            "any([families.refresh_merge(draft, draft.state.runs[one.run_id]) for one in affected])",
        ),
    ),
    mutant(
        "second request refused after the fence",
        "a second request was refused",
        321,
        (filing._same_request, " and client.id not in active", ""),
    ),
    mutant(
        "line keeps its plan when its cohort is cut again",
        "a line of an epoch that is over",
        321,
        (cutting._cut_cohort, "plan_others_again(draft, affected)", "pass"),
    ),
    mutant(
        "request verified while its cohort is cut again",
        "completed with an open line",
        1,
        (cutting.plan_others_again, 'erasure.status in ("verifying", "requires_action")', "False"),
    ),
    mutant(
        "tasks handed out before the ledger is written",
        "handed out before the ledger is written",
        308,
        (work.claim_tasks, "client.exclusions != client.exclusions_acked", "False"),
    ),
    mutant(
        "another session takes over the acknowledgement",
        "acknowledged and not in the ledger",
        76,
        (evolve._of_run, "replace(client, exclusions_acked=None, dropped_at=None)", "client"),
    ),
    mutant(
        "acknowledgement of an older state accepted",
        "what was read before counts as all there is",
        308,
        (samples.acknowledge, "client.exclusions != message.digest", "False"),
    ),
    mutant(
        "samples forgotten without an acknowledgement",
        "completed without an acknowledgement",
        1004,
        (samples.unacknowledged, "and x.acked_at is None", "and False"),
    ),
    mutant(
        "client with erased samples leaves",
        "num_clients",
        308,
        (fence._fence_run, 'leavers if erasure.scope == "client" else frozenset[UUID]()', "leavers"),
    ),
    mutant(
        "request for other samples taken for the same",
        "a duplicate of something else",
        308,
        (samples.same_request, "samples <= set(", "bool("),
    ),
    mutant(
        "completed twice",
        "a chore that was done twice counted twice",
        380,
        (completion.complete_erasure, 'not (erasure.status == "verifying" or is_tried_again)', "False"),
    ),
    mutant(
        "second request for the same client carried out",
        "a second request",
        321,
        (filing.file_erasure, "_same_request(draft.state, clients)", "None"),
    ),
    mutant(
        "duplicates stay open",
        "a duplicate ends with its original",
        321,
        (completion.settle, "other.duplicate_of == erasure.id", "False"),
    ),
    mutant(
        "removal lifts the tombstone",
        "the tombstone is gone",
        308,
        (runs.remove_client, 'client.status != "active"', 'client.status == "removed"'),
    ),
    mutant(
        "lock-step opened while one cohort computes",
        "opened while others are",
        9,
        (programs.open_rounds, ', "computing")', ")"),
    ),
    mutant(
        "lock-step opened in a run that does not run",
        "a round opened in a run that does not run",
        41,
        (programs.open_rounds, '.status != "running"', '.status == ""'),
    ),
    mutant(
        "emptied cohort fails the others",
        "failed without a cause",
        35,
        (programs._end_emptied, "if is_only", "if True"),
    ),
    mutant(
        "token check dropped",
        "a lease token was accepted after another claim",
        5,
        (work._refusal, "task.lease_token != token", "False"),
    ),
    mutant(
        "token check of jobs dropped",
        "a job's lost lease was accepted",
        746,
        (decide._leased_job, " or job.lease_token != message.lease_token", ""),
    ),
    mutant(
        "replay counted again",
        "a replay was counted",
        321,
        (work.submit_result, 'task.status == "done"', "False"),
        (work._refusal, '("leased", "ready")', '("leased", "ready", "done")'),
    ),
    mutant(
        "second result taken for a replay",
        "a second result was accepted",
        380,
        (work._replayed, " or update.digest != message.digest", ""),
    ),
    mutant(
        "late update accepted",
        "a late update was accepted",
        2,
        (work._refusal, '("leased", "ready")', '("leased", "ready", "revoked")'),
    ),
    mutant(
        "stale update accepted",
        "a stale update was accepted",
        308,
        (work._staleness_refusal, "staleness <= round.staleness_bound", "True"),
    ),
    mutant(
        "deadline closes below quorum",
        "closed below its quorum",
        867,
        (programs.is_filled, "round.num_received >= round.quorum and", "round.num_received >= 1 and"),
    ),
    mutant(
        "client counted twice in a buffer",
        "a client counted twice",
        20379,
        (asking.busy_clients, "return in_hand | {u.client_id for u in buffered if u.kind == kind}", "return in_hand"),
    ),
    mutant(
        "base not rebound to what is sent",
        "trained from a model that is no ancestor",
        622,
        (work.claim_tasks, "newest.number - 1,", "task.base_round,"),
    ),
    mutant(
        "num_open not decremented", "num_open", 321, (evolve._without_open_task, "round.num_open - 1", "round.num_open")
    ),
    mutant(
        "contributions not in the order of names",
        "contributions are in the order of the clients' names",
        321,
        (programs.collect, "u.client_name", "u.id"),
    ),
    mutant(
        "updates of another cohort collected",
        "an update of another cohort is in a checkpoint",
        20379,
        (programs.answers_to, "u.cohort_id == round.cohort_id and ", ""),
    ),
    mutant(
        "stragglers not revoked",
        "a client has two open tasks of a kind",
        34,
        (programs.collect, "draft.revoke(withdrawn)", "pass"),
    ),
    mutant(
        "cancelled run goes on",
        "an ended run has open work",
        746,
        (runs.cancel_run, "_stop_work(draft, run.id)", "pass"),
    ),
    mutant(
        "paused run hands out work",
        "work of a run that does not run",
        783,
        (work.claim_tasks, 'run.status != "running" or ', ""),
    ),
    mutant(
        "removal leaves work with the client",
        "asked after it left",
        308,
        (runs.remove_client, "withdraw_task(draft, task)", "pass"),
    ),
    mutant(
        "removal does not shrink the round",
        "waits for an operator although no client failed",
        746,
        (evolve._withdraw, "quorum=max(1, min(round.quorum, num_selected))", "quorum=round.quorum"),
    ),
    mutant(
        "emptied round asks nobody",
        "waits for answers that nobody can give",
        308,
        (programs.check_round, "draft.emit(e.RoundStarved(round.id))", "pass"),
    ),
    mutant(
        "nobody is told that a quorum is out of reach",
        "waits for answers that nobody can give",
        622,
        (programs.check_round, "_hold_for_quorum(", "print if True else ("),
    ),
    mutant(
        "failed tasks are not given out again",
        "a run is stuck",
        622,
        (runs.resume_run, "draft.emit(e.TaskReissued(task.id))", "pass"),
    ),
    mutant(
        "erased client comes back",
        "an erased client came back",
        131,
        (joining._newcomer, 'client.status == "erased"', "False"),
        (joining._newcomer, 'client.status != "active"', "False"),
    ),
    mutant(
        "member not counted", "num_members", 321, (evolve._resized, "cohort.num_members + change", "cohort.num_members")
    ),
    mutant(
        "cohorts above do not gain the newcomer",
        "a cohort is not inside its parent",
        867,
        (joining._graft, "if name in known:", "if name in known and False:"),
    ),
    mutant(
        "new cohort starts from everybody's model",
        "a new cohort starts from one that is not inside",
        867,
        (joining._form_node, "for c in beside if", "for c in [root] if"),
    ),
    mutant(
        "full clusters take more",
        "a cluster is larger than it may be",
        380,
        (knot.check_room, "< num_newcomers", "< 0"),
        (knot._with_room, " if size < max_size", ""),
    ),
    mutant(
        "run that is over is joined",
        "a run that is over was joined",
        867,
        (joining.join_run, "run.status in ENDED", "False"),
    ),
    mutant(
        "finished line is joined",
        "joined what trains no more",
        4,
        (joining._training_tops, "if c.phase not in families.TRAINING", "if False"),
    ),
    mutant(
        "standby never promoted",
        "waits for answers that nobody can give",
        60,
        (work._replace_in_stream, "if standby:", "if False:"),
    ),
)


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """Swap the functions' code, so that every module that imported them runs the edited ones."""
    texts: dict[Any, str] = {}
    for function, old, new in mutant.edits:
        text = texts.get(function) or dedent(inspect.getsource(function))
        assert text.count(old) == 1, f"{function.__name__} no longer says {old!r}: bring the mutant up to date"
        texts[function] = text.replace(old, new)
    kept = {function: function.__code__ for function in texts}
    try:
        for function, text in texts.items():
            function.__code__ = _compiled(function, text)
        yield
    finally:
        for function, code in kept.items():
            function.__code__ = code


def _compiled(function: Any, text: str) -> CodeType:
    namespace = dict(function.__globals__)
    flags = __future__.annotations.compiler_flag
    exec(compile(text, f"<{function.__name__}, mutated>", "exec", flags=flags, dont_inherit=True), namespace)
    code: CodeType = namespace[function.__name__].__code__
    return code
