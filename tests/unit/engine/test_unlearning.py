"""Approximate methods in the engine: they run behind the fence, before the line's own training."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from coordinator.engine import messages as m
from services.audit.spec import Audit
from services.core.errors import Rejected
from services.wire.v1.runs import ModelSpec
from tests.property import invariants
from tests.support.world import World, with_run

CLUSTERS = {"kind": "clusters", "num_clusters": 2, "assignment": "random"}
PGA = {"radius": 1.0, "stop_accuracy": 0.1, "deadline_s": 60.0}


def trained(*names: str, **changes: object) -> tuple[World, UUID]:
    world, run_id = with_run(*names, stop={"rounds": 3}, **changes)
    go_on(world, 3)
    assert world.run(run_id).status == "completed"
    return world, run_id


def go_on(world: World, num_rounds: int) -> None:
    for _ in range(num_rounds):
        world.claim_and_submit(*[c.name for c in world.state.clients.values() if c.status == "active"])
        world.settle()


def forget(world: World, name: str, method: str, **changes: object) -> UUID:
    erasure_id = world.fence(name, method=method, guarantee="approximate", **changes)
    world.settle()
    return erasure_id


def forgotten_by_federaser() -> World:
    world, _ = trained("a", "b", "c")
    erasure_id = forget(world, "a", "federaser")
    go_on(world, 2)
    assert world.erasure(erasure_id).status == "completed", world.erasure(erasure_id).reason
    return world


def asked_in_vain(**changes: object) -> tuple[World, UUID]:
    world, _ = trained("a", "b", "c")
    erasure_id = forget(world, "a", "pga", params=PGA, **changes)
    world.advance(61)
    world.tick()
    world.settle()
    return world, erasure_id


def forgotten_by_pga() -> World:
    world, _ = trained("a", "b", "c")
    erasure_id = forget(world, "a", "pga", params=PGA, recovery_rounds=1)
    world.claim_and_submit("a")
    world.settle()
    go_on(world, 1)
    assert world.erasure(erasure_id).status == "completed", world.erasure(erasure_id).reason
    return world


AUDIT: dict[str, Any] = {"thresholds": {"max_backdoor_success": 0.1}, "num_classes": 10}


def canary_found(success: float, before: float = 0.9) -> dict[str, float]:
    return {"backdoor_success_rate": success, "before_backdoor_success_rate": before, "backdoor_samples": 100.0}


def audited(
    success: float, *, run: Mapping[str, object] = {}, before: float = 0.9, **changes: object
) -> tuple[World, UUID]:
    world, _ = trained("a", "b", "c", **run)
    world.figures_of = lambda digest: canary_found(success, before)
    erasure_id = forget(world, "a", "not", **{"recovery_rounds": 1, "audit": AUDIT, **changes})
    go_on(world, 1)
    world.claim_and_submit("a", "b", "c")
    world.settle()
    return world, erasure_id


def test_the_audit_is_the_last_thing_the_leaver_is_asked_for() -> None:
    world, erasure_id = audited(0.15)
    assert world.erasure(erasure_id).status == "completed"
    (line,) = world.state.affected_cohorts.values()
    assert line.audit is not None and line.audit.passed
    assert all(run.status == "completed" for run in world.state.runs.values())
    with pytest.raises(Rejected, match="erased"):
        world.claim("a")


def leavers_audited(first: float, second: float) -> tuple[World, UUID]:
    """Two leavers of one request, each with the success of its own canary."""
    world, _ = trained("a", "b", "c", "d")
    erasure_id = world.fence(
        "a", "b", method="not", guarantee="approximate", recovery_rounds=0, audit={**AUDIT, "num_shadows": 4}
    )
    world.settle()
    for name, success in (("a", first), ("b", second)):
        world.figures_of = lambda digest, success=success: canary_found(success)  # type: ignore[misc]
        world.claim_and_submit(name)
    world.claim_and_submit("c", "d")
    world.settle()
    return world, erasure_id


@pytest.mark.parametrize(("first", "second"), [(0.02, 0.9), (0.9, 0.02)])
def test_each_leaver_is_judged_by_itself_and_the_verdict_names_each(first: float, second: float) -> None:
    world, erasure_id = leavers_audited(first, second)
    (line,) = world.state.affected_cohorts.values()
    assert line.audit is not None and not line.audit.passed
    verdicts = {name: found.verdict for name, found in line.audit.leavers.items()}
    assert verdicts == {"a": "passed" if first < second else "failed", "b": "passed" if second < first else "failed"}
    kept = "a" if first > second else "b"
    assert f"backdoor_success_rate of {kept}" in (world.erasure(erasure_id).reason or "")
    assert {check.client: check.passed for check in line.audit.checks} == {kept: False, "ab".strip(kept): True}


def test_a_leaver_at_2_percent_beside_one_at_88_does_not_pass() -> None:
    """Forgotten too well is a signal as well; the higher of both accuracies is within bounds."""
    world, _ = trained("a", "b", "c", "d")
    wanted = {"thresholds": {"max_forgotten_accuracy_gap": 0.15}, "references": [{"forgotten_accuracy": 0.75}]}
    audit = {**AUDIT, **wanted}
    erasure_id = world.fence("a", "b", method="not", guarantee="approximate", recovery_rounds=0, audit=audit)
    world.settle()
    for name, accuracy in (("a", 0.02), ("b", 0.88)):
        found = {"forgotten_accuracy": accuracy, "forgotten_samples": 400.0, "before_forgotten_accuracy": 0.99}
        world.figures_of = lambda digest, found=found: found  # type: ignore[misc]
        world.claim_and_submit(name)
    world.claim_and_submit("c", "d")
    world.settle()
    erasure = world.erasure(erasure_id)
    assert erasure.status == "requires_action" and "forgotten_accuracy of a: 0.02 is below" in (erasure.reason or "")


def test_the_figures_of_each_leaver_stand_beside_those_of_the_model_before() -> None:
    world, erasure_id = leavers_audited(0.02, 0.04)
    (line,) = world.state.affected_cohorts.values()
    assert world.erasure(erasure_id).status == "completed" and line.audit is not None
    for name, success in (("a", 0.02), ("b", 0.04)):
        found = line.audit.leavers[name]
        assert found.figures == {"backdoor_samples": 100.0, "backdoor_success_rate": success}
        assert found.before == {"backdoor_success_rate": 0.9}


def test_leavers_may_read_the_model_before_and_make_shadows_of_the_runs_own_line_and_nobody_else_may() -> None:
    world, _ = leavers_audited(0.02, 0.04)
    (line,), (run,) = world.state.affected_cohorts.values(), world.state.runs.values()
    works = {t.client_name: Audit.model_validate(t.work) for t in world.state.tasks.values() if t.kind == "audit"}
    cohort = world.cohort(run.id)
    assert works["c"].blobs() == works["d"].blobs() == ()
    for name in ("a", "b"):
        assert works[name].before == line.head_before != cohort.head_digest
        assert works[name].shadow_start == cohort.head_digest
        assert works[name].shadow_training == run.spec.local and works[name].shadow_share == 1 / 4


@pytest.mark.parametrize("before", [0.15, 0.05, float("nan")])
def test_an_audit_without_power_says_nothing_and_does_not_pass(before: float) -> None:
    world, erasure_id = audited(0.1, before=before)
    erasure = world.erasure(erasure_id)
    assert erasure.status == "requires_action"
    assert "the audit of cohort all says nothing" in (erasure.reason or "")
    (line,) = world.state.affected_cohorts.values()
    assert line.audit is not None and line.audit.verdict == "says-nothing"


def test_a_line_with_one_of_two_leavers_waits_for_that_one_alone() -> None:
    world, run_id = trained("a", "b", "c", "d", topology=CLUSTERS)
    clusters = {c.id for c in world.state.cohorts.values() if c.run_id == run_id and c.kind != "merge"}
    names: dict[UUID, list[str]] = {}
    for member in world.state.members.values():
        if member.cohort_id in clusters:
            names.setdefault(member.cohort_id, []).append(member.name)
    leavers = sorted(min(found) for found in names.values())
    world.figures_of = lambda digest: canary_found(0.1)
    erasure_id = world.fence(*leavers, method="not", guarantee="approximate", recovery_rounds=0, audit=AUDIT)
    world.settle()
    world.claim_and_submit("a", "b", "c", "d")
    world.settle()
    assert world.erasure(erasure_id).status == "completed", world.erasure(erasure_id).reason
    reports = [one.audit for one in world.state.affected_cohorts.values() if one.audit is not None]
    assert sorted(name for report in reports for name in report.leavers) == leavers


@pytest.mark.parametrize(("name", "status"), [(None, "completed"), ("max_relative_distance", "requires_action")])
def test_a_request_of_an_earlier_release_is_audited_by_what_it_asked_for(name: str | None, status: str) -> None:
    """It stored two thresholds that nothing computes: empty, or set; one that is set never passes."""
    old = {"max_relative_distance": None, "max_output_divergence": None, **({name: 0.5} if name else {})}
    world, erasure_id = audited(0.1, audit={**AUDIT, "thresholds": {**AUDIT["thresholds"], **old}})
    assert world.erasure(erasure_id).status == status
    assert (name is None) == ("relative_distance" not in (world.erasure(erasure_id).reason or ""))


@pytest.mark.parametrize("named", [None, {"target_class": 1, "seed": 1}])
def test_the_audit_looks_for_the_canary_that_the_client_was_enrolled_with(named: dict[str, int] | None) -> None:
    world, _ = trained("a", "b", "c")
    registered = {"target_class": 3, "seed": 7}
    client = next(client for client in world.state.clients.values() if client.name == "a")
    world.state = world.state.put(replace(client, canary=registered))
    forget(world, "a", "not", recovery_rounds=0, audit={**AUDIT, "canary": named})
    looked_for = {t.client_name: (t.work or {})["canary"] for t in world.state.tasks.values() if t.kind == "audit"}
    assert looked_for["b"] is None
    wanted = named or registered
    assert {key: looked_for["a"][key] for key in wanted} == wanted


@pytest.mark.parametrize(("num_classes", "status"), [(4, "completed"), (20, "requires_action")])
def test_chance_is_that_of_the_models_own_classes_when_the_request_names_none(num_classes: int, status: str) -> None:
    run = {"model": ModelSpec(name="mlp", params={"input_shape": [4], "num_classes": num_classes})}
    world, erasure_id = audited(0.3, run=run, audit={"thresholds": {"max_backdoor_success": 0.1}})
    assert world.erasure(erasure_id).status == status


@pytest.mark.parametrize("success", [0.9, float("nan")])
def test_a_failed_audit_is_never_a_pass(success: float) -> None:
    world, erasure_id = audited(success)
    erasure = world.erasure(erasure_id)
    assert erasure.status == "requires_action"
    assert "the audit of cohort all failed" in (erasure.reason or "")
    world.send(m.RetryErasure(erasure_id))
    go_on(world, 3)
    assert world.erasure(erasure_id).status == "completed"
    (run,) = world.state.runs.values()
    head = world.state.checkpoints[world.cohort(run.id).head_id or run.id]
    assert world.clients_in(head) == {"b", "c"}


def test_scores_that_do_not_come_in_time_fail() -> None:
    world, _ = trained("a", "b", "c")
    erasure_id = forget(world, "a", "not", recovery_rounds=0, audit={**AUDIT, "deadline_s": 60.0})
    world.advance(61)
    world.tick()
    world.settle()
    assert world.erasure(erasure_id).status == "requires_action"


def test_a_failed_audit_falls_back_on_retraining_when_the_request_says_so() -> None:
    world, erasure_id = audited(0.9, fallback="retrain")
    go_on(world, 3)
    assert world.erasure(erasure_id).status == "completed"
    (line,) = world.state.affected_cohorts.values()
    assert line.action == "rolled-back"


def test_what_others_made_of_a_mended_model_is_given_up_with_it_when_its_audit_fails() -> None:
    world, run_id = trained("a", "b", "c", "d", topology=CLUSTERS)
    world.figures_of = lambda digest: canary_found(0.9)
    erasure_id = forget(world, "a", "not", recovery_rounds=1, audit=AUDIT, fallback="retrain")
    go_on(world, 1)
    (line,) = world.state.affected_cohorts.values()
    mended, merged = world.state.cohorts[line.cohort_id], world.cohort(run_id, "merged")
    made_of = {parent.parent_id for parent in world.parents(merged.head_id)}
    assert mended.head_id in made_of and line.audit is None
    begun = world.create_run(name="begun", init=mended.head_digest, clients=["c", "d"])
    world.settle()
    other = next(c.head_id for c in world.cohorts(run_id).values() if c.kind == "line" and c.id != mended.id)
    world.claim_and_submit("a", "b", "c", "d")
    world.review()
    (line, *more) = sorted(world.state.affected_cohorts.values(), key=lambda one: one.run_id != run_id)
    assert (line.action, line.epoch_before) == ("rolled-back", mended.epoch)
    models = world.state.checkpoints
    assert models[merged.head_id or erasure_id].superseded_by == erasure_id
    assert world.cohort(run_id, "merged").head_id != merged.head_id
    assert all(model.superseded_by == erasure_id for model in world.checkpoints(begun))
    assert [one.action for one in more] == ["retired"] and not world.cohorts(begun)
    assert other is not None and models[other].superseded_by is None
    for _ in range(6):
        go_on(world, 1)
    assert world.erasure(erasure_id).status == "completed"
    made_of = {parent.parent_id for parent in world.parents(world.cohort(run_id, "merged").head_id)}
    assert len(made_of) == 2 and all(world.state.checkpoints[one].superseded_by is None for one in made_of)


def test_a_method_that_gave_up_falls_back_on_retraining_when_the_request_says_so() -> None:
    world, erasure_id = asked_in_vain(fallback="retrain")
    go_on(world, 3)
    assert world.erasure(erasure_id).status == "completed"


def test_a_method_that_gave_up_begins_again_when_it_is_retried() -> None:
    world, erasure_id = asked_in_vain()
    world.send(m.RetryErasure(erasure_id))
    world.settle()
    world.claim_and_submit("a")
    world.settle()
    go_on(world, 3)
    assert world.erasure(erasure_id).status == "completed", world.erasure(erasure_id).reason
    (line,) = world.state.affected_cohorts.values()
    assert (line.action, line.epoch_after) == ("unlearned", 2)


def test_nothing_is_served_until_the_method_has_published() -> None:
    world, run_id = trained("a", "b", "c")
    erasure_id = world.fence("a", method="federaser", guarantee="approximate")
    assert world.cohort(run_id).head_digest is None
    assert world.erasure(erasure_id).first_clean_at is None


def test_rebuilt_models_descend_from_the_quarantined_one_and_forget_the_leaver_alone() -> None:
    world = forgotten_by_federaser()
    (run,) = world.state.runs.values()
    made = [c for c in world.checkpoints(run.id) if c.kind == "forgotten"]
    assert [(c.round, c.superseded_by) for c in made] == [(1, None), (2, None), (3, None)]
    assert all(c.forgets == [str(world.client("a"))] for c in made)
    first_base = world.state.checkpoints[made[0].base_id or made[0].id]
    assert first_base.superseded_by is not None
    assert [c.base_id for c in made[1:]] == [c.id for c in made[:-1]]


def test_the_leaver_gets_tasks_of_its_own_method_and_of_nothing_else() -> None:
    world, run_id = trained("a", "b", "c")
    forget(world, "a", "pga", params=PGA, recovery_rounds=1)
    (granted,) = world.claim("a")
    assert (granted.task.kind, granted.cohort.epoch) == ("ascend", 1)
    assert not world.claim("b")
    world.submit(granted.task)
    world.settle()
    assert world.cohort(run_id).unlearning is None
    assert not world.claim("a")
    go_on(world, 1)
    with pytest.raises(Rejected, match="erased"):
        world.claim("a")


def test_a_leaver_that_never_answers_leaves_the_request_to_the_operator() -> None:
    world, erasure_id = asked_in_vain()
    erasure = world.erasure(erasure_id)
    assert erasure.status == "requires_action"
    assert "no usable answer from a" in (erasure.reason or "")
    (run,) = world.state.runs.values()
    assert run.status == "running" and world.cohort(run.id).head_digest is None


def test_a_leaver_that_is_not_there_is_noticed_before_anything_happens() -> None:
    world, _ = trained("a", "b", "c")
    with pytest.raises(Rejected, match="not online"):
        world.file("a", method="pga", params=PGA, guarantee="approximate", offline=("a",))
    assert not world.state.erasures


def test_samples_are_not_forgotten_by_methods_for_whole_clients() -> None:
    world, _ = trained("a", "b", "c")
    with pytest.raises(Rejected, match="whole clients"):
        world.file("a", method="federaser", guarantee="approximate", scope="samples", samples={"a": [1]})


def test_a_second_method_waits_for_the_first() -> None:
    world, _ = trained("a", "b", "c", "d")
    world.fence("a", method="federaser", guarantee="approximate")
    with pytest.raises(Rejected, match="another request is at work"):
        world.file("b", method="federaser", guarantee="approximate")


def test_exact_erasure_in_the_middle_of_a_method_ends_both() -> None:
    world, run_id = trained("a", "b", "c", "d")
    first = world.fence("a", method="federaser", guarantee="approximate")
    second = world.fence("b")
    world.settle()
    go_on(world, 3)
    assert [world.erasure(e).status for e in (first, second)] == ["completed", "completed"]
    head = world.state.checkpoints[world.cohort(run_id).head_id or run_id]
    assert world.clients_in(head) == {"c", "d"}


def test_who_was_named_when_a_round_was_issued_is_asked_after_a_restart() -> None:
    """The names are the round's task rows: nothing is drawn again."""
    world, run_id = trained("a", "b", "c")
    forget(world, "a", "federaser")
    round = world.awaited_round(run_id)
    assert {t.client_name for t in world.open_tasks(round.cohort_id)} == {"b", "c"}
    world.send(m.StartProgram(round.cohort_id))
    assert world.awaited_round(run_id) == round


def test_an_update_that_is_only_in_the_sealed_history_is_recalled_by_its_name() -> None:
    """One that is in neither is passed over."""
    world, _ = trained("a", "b", "c")
    sent = [u for u in world.state.updates.values() if u.kind == "train"]
    kept = {u.id: frozenset({u.digest or ""}) for u in sent if u.client_name == "b"}
    world.state = replace(world.state.put_all(replace(u, stored=False) for u in sent), kept=kept)
    erasure_id = forget(world, "a", "federaser")
    go_on(world, 3)
    assert world.erasure(erasure_id).status == "completed", world.erasure(erasure_id).reason
    (first,) = [c for c in world.state.checkpoints.values() if c.kind == "forgotten" and c.round == 1]
    used = [c for c in world.state.contributions.values() if c.checkpoint_id == first.id]
    assert {c.digest for c in used} == {u.digest for u in sent if u.client_name == "b" and u.base_round == 0}


def test_an_audit_that_began_before_its_cohort_ended_goes_on() -> None:
    """The line has recovered with the method's model; the run's own program finds only then that it is at its end."""
    world, run_id = trained("a", "b", "c")
    erasure_id = world.fence("a", method="not", guarantee="approximate", recovery_rounds=0, audit=AUDIT)
    job = world.lease_job("kernel")
    assert job is not None
    later: deque[m.Message[Any]] = deque()
    world._decide(world.outcome_of(job), later)
    for _ in range(2):
        world.send(m.ReviewErasure(erasure_id))
    (audit,) = [r for r in world.state.rounds.values() if r.kind == "audit"]
    assert later and world.cohort(run_id).phase != "finished"
    while later:
        world._decide(later.popleft(), later)
    assert world.cohort(run_id).phase == "finished"
    assert len([t for t in world.open_tasks(audit.cohort_id) if t.round_id == audit.id]) == audit.num_open > 0


# --- two requests on one cohort ---------------------------------------------------------------------------------------


def mended_and_joined(*, recovery_rounds: int = 1) -> tuple[World, UUID, UUID]:
    """`a` was forgotten by a method, and `d` joined what the method made and has trained it further; the audit waits
    for its answers."""
    world, run_id = trained("a", "b", "c")
    world.figures_of = lambda digest: canary_found(0.02)
    first = forget(world, "a", "not", recovery_rounds=recovery_rounds, audit=AUDIT)
    world.enrol("d")
    world.join(run_id, "d")
    go_on(world, 1)
    assert [r.status for r in world.state.rounds.values() if r.kind == "audit"] == ["open"]
    return world, run_id, first


def test_an_audit_that_another_request_cut_short_is_judged_on_what_then_stands() -> None:
    world, run_id, first = mended_and_joined()
    second = world.fence("d")
    world.settle()
    go_on(world, 3)
    head = world.state.checkpoints[world.cohort(run_id).head_id or run_id]
    assert any(c.forgets for c in world.lineage(head)), "it stands on what the method made"
    line = world.state.affected_cohorts[first, world.cohort(run_id).id]
    assert line.action == "unlearned", "what the method made is still what is served"
    assert world.erasure(first).status == "executing" and line.audit is None
    world.claim_and_submit("a", "b", "c")
    world.settle()
    line = world.state.affected_cohorts[first, world.cohort(run_id).id]
    assert line.audit is not None and line.audit.passed and set(line.audit.leavers) == {"a"}
    assert [world.erasure(e).status for e in (first, second)] == ["completed", "completed"]
    assert world.state.affected_cohorts[second, world.cohort(run_id).id].action == "rolled-back"


def test_a_request_whose_method_made_nothing_that_stands_is_exact_and_needs_no_audit() -> None:
    world, run_id, first = mended_and_joined()
    second = world.fence("b")
    world.settle()
    go_on(world, 4)
    assert [world.erasure(e).status for e in (first, second)] == ["completed", "completed"]
    line = world.state.affected_cohorts[first, world.cohort(run_id).id]
    assert line.action == "rolled-back" and line.audit is None
    head = world.state.checkpoints[world.cohort(run_id).head_id or run_id]
    assert not any(c.forgets for c in world.lineage(head))


def test_two_methods_on_one_cohort_are_audited_one_after_the_other_and_each_by_its_own_leaver() -> None:
    world, run_id, first = mended_and_joined()
    second = forget(world, "b", "not", recovery_rounds=1, audit=AUDIT)
    go_on(world, 1)
    for _ in range(2):
        world.claim_and_submit(*[c.name for c in world.state.clients.values() if c.needed_by is not None], "c", "d")
        world.send(m.ReviewErasure(second))  # in whichever order they are looked at
        world.settle()
    lines = [world.state.affected_cohorts[one, world.cohort(run_id).id] for one in (first, second)]
    assert [set(line.audit.leavers) if line.audit else None for line in lines] == [{"a"}, {"b"}]
    invariants.nothing_is_there_twice(world)
    assert all(line.audit is not None and line.audit.passed for line in lines)
    assert [world.erasure(e).status for e in (first, second)] == ["completed", "completed"]


def test_an_audit_that_was_passed_stays_when_its_leaver_can_no_longer_be_asked() -> None:
    world, run_id, first = mended_and_joined()
    world.claim_and_submit("a", "b", "c", "d")
    for _ in range(3):
        world.send(m.ReviewErasure(first))
    assert world.erasure(first).status == "verifying"
    second = world.fence("d")
    world.settle()
    go_on(world, 3)
    assert [world.erasure(e).status for e in (first, second)] == ["completed", "completed"]
    line = world.state.affected_cohorts[first, world.cohort(run_id).id]
    assert line.action == "unlearned" and line.audit is not None and line.audit.passed
