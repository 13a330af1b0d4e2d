"""Recovery methods in the engine: the stage after any unlearning method, and by itself."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from coordinator.engine import messages as m
from coordinator.engine.entities import Cohort
from coordinator.engine.erasure.stages import Recover, RecoveryWanted
from coordinator.engine.events import ClassFound
from coordinator.engine.journal import entry
from services.core.digests import of_json
from services.core.errors import Rejected
from services.recovery.fedrs.spec import RestrictedTraining
from services.recovery.imba_ulrc.spec import OversampledTraining
from services.wire.v1.runs import ModelSpec
from tests.support.world import World, with_run
from tests.unit.engine.test_unlearning import PGA, forget, go_on, trained

DATA = of_json("the validation set")
FEDRS = RecoveryWanted("fedrs", {"alpha": 0.1})
IMBA = RecoveryWanted("imba_ulrc", {})
MODEL = ModelSpec(name="mlp", params={"input_shape": [4], "num_classes": 10})
JUDGED: dict[str, Any] = {"validation": {"data": DATA}, "model": MODEL}


def judged(*names: str, **changes: Any) -> tuple[World, UUID]:
    """A completed run with a validation set."""
    world = World()
    world.enrol(*names)
    world.store_blob(DATA)
    run_id = world.create_run(stop={"rounds": 3}, **JUDGED, **changes)
    world.settle()
    go_on(world, 3)
    assert world.run(run_id).status == "completed"
    return world, run_id


def kinds(world: World, *names: str) -> set[str]:
    """What the tasks are that these clients are given in the open round; they are all answered."""
    granted = [grant for name in names for grant in world.claim(name)]
    for grant in granted:
        world.submit(grant.task)
    world.settle()
    return {grant.kind for grant in granted}


def recovered_by_oversampling(method: str) -> World:
    world, run_id = judged("a", "b", "c")
    if method == "pga":
        erasure_id = forget(world, "a", "pga", params=PGA, recovery_rounds=2, recovery=IMBA)
        world.claim_and_submit("a")
        world.settle()
    else:
        erasure_id = world.fence("a", method=method, recovery_rounds=2, recovery=IMBA)
        world.settle()
        assert [kinds(world, "b", "c") for _ in range(3)] == [{"train"}] * 3
        assert world.erasure(erasure_id).status == "executing"
    assert [kinds(world, "b", "c") for _ in range(2)] == [{"oversampled_training"}] * 2
    assert world.erasure(erasure_id).status == "completed", world.erasure(erasure_id).reason
    assert world.run(run_id).status == "completed"
    return world


def recovered_by_itself() -> World:
    world, run_id = trained("a", "b", "c", model=MODEL)
    world.send(m.RecoverRun(run_id, FEDRS, 2))
    world.settle()
    assert [kinds(world, "a", "b", "c") for _ in range(2)] == [{"restricted_training"}] * 2
    assert world.run(run_id).status == "completed"
    return world


@pytest.mark.parametrize("method", ["pga", "retrain", "rapid"])
def test_the_class_that_lost_most_is_found_before_its_recovery_begins(method: str) -> None:
    world = recovered_by_oversampling(method)
    (found,) = [event for event in world.events if isinstance(event, ClassFound)]
    (cohort,) = world.state.cohorts.values()
    told = entry(found, world.state)
    assert told is not None and told.data == {
        "reason": "class 1 lost 0.9000 of its accuracy",
        "recovery": "imba_ulrc",
        "after_round": 4 if method == "pga" else 3,
        "until_round": 6 if method == "pga" else 5,
    }
    stage = cohort.recovery.at(5) if cohort.recovery is not None else None
    assert stage is not None and (stage.found_class, stage.params, stage.compared_with) == (
        1,
        {"skewed_class": 1},
        None,
    )


def test_the_model_that_is_compared_with_is_the_one_from_before_the_erasure() -> None:
    world, run_id = judged("a", "b", "c")
    before = world.cohort(run_id).head_digest
    world.fence("a", method="retrain", recovery=IMBA)
    recovery = world.cohort(run_id).recovery
    assert recovery is not None and recovery.then is not None and recovery.then.compared_with == before
    assert (recovery.until_round, recovery.last_round) == (3, 13), "ten rounds when the request does not say"


def test_tasks_of_a_recovery_name_it_and_count_its_rounds() -> None:
    world, run_id = trained("a", "b", "c", model=MODEL)
    forget(world, "a", "not", recovery_rounds=3, recovery=FEDRS)
    for number in (1, 2, 3):
        (grant,) = world.claim("b")
        assert isinstance(grant.work, RestrictedTraining) and grant.kind == "restricted_training"
        told = (grant.work.number, grant.work.num_rounds, grant.work.is_last, grant.work.alpha)
        assert told == (number, 3, number == 3, 0.1)
        assert grant.work.recovery == f"{world.cohort(run_id).id}-1-3"
        assert grant.task.kind == "train", "what the round is about does not change"
        world.submit(grant.task)
        world.claim_and_submit("c")
        world.settle()
    assert world.run(run_id).status == "completed"


def test_where_no_class_lost_anything_clients_train_as_always() -> None:
    world, _ = judged("a", "b", "c")
    world.lost_class = None
    erasure_id = forget(world, "a", "not", recovery_rounds=2, recovery=IMBA)
    assert [kinds(world, "b", "c") for _ in range(2)] == [{"train"}] * 2
    assert world.erasure(erasure_id).status == "completed"
    (found,) = [event for event in world.events if isinstance(event, ClassFound)]
    assert found.reason == "no class lost accuracy"


def test_a_comparison_that_fails_costs_the_method_and_not_the_run() -> None:
    world, run_id = judged("a", "b", "c")
    erasure_id = world.fence("a", method="not", guarantee="approximate", recovery_rounds=1, recovery=IMBA)
    while (job := world.lease_job("kernel")) is not None and job.kernel != "find_class":
        world.send(world.outcome_of(job))
    assert job is not None
    world.send(m.JobFailed(job.id, job.lease_token or "", "the validation set is damaged", retryable=False))
    world.settle()
    assert kinds(world, "b", "c") == {"train"}
    assert (world.erasure(erasure_id).status, world.run(run_id).status) == ("completed", "completed")


@pytest.mark.parametrize(
    ("recovery", "code", "says"),
    [
        (RecoveryWanted("pruning", {}), "method-unavailable", "known are plain, imba_ulrc"),
        (RecoveryWanted("fedrs", {"alpha": 2}), "invalid-request", "recovery.params do not fit"),
        (RecoveryWanted("plain", {"alpha": 1}), "invalid-request", "recovery.params do not fit"),
        (IMBA, "method-unavailable", r"no validation set .* say which class it is, as recovery.params.skewed_class"),
        (RecoveryWanted("imba_ulrc", {"skewed_class": 10}), "invalid-request", "the classes 0 to 9"),
    ],
)
def test_a_recovery_that_cannot_be_is_refused_when_it_is_asked_for(
    recovery: RecoveryWanted, code: str, says: str
) -> None:
    world, run_id = trained("a", "b", model=MODEL)
    for ask in (lambda: world.file("a", recovery=recovery), lambda: world.send(m.RecoverRun(run_id, recovery))):
        if recovery is IMBA and ask.__code__.co_names[-1] == "RecoverRun":
            says = "nothing to compare with"
        with pytest.raises(Rejected, match=says) as refused:
            ask()
        assert refused.value.code == code


def test_a_given_class_needs_no_validation_set() -> None:
    world, _ = trained("a", "b", "c", model=MODEL)
    erasure_id = forget(world, "a", "not", recovery_rounds=1, recovery=RecoveryWanted("imba_ulrc", {"skewed_class": 8}))
    (grant,) = world.claim("b")
    assert isinstance(grant.work, OversampledTraining) and grant.work.skewed_class == 8
    world.submit(grant.task)
    world.claim_and_submit("c")
    world.settle()
    assert world.erasure(erasure_id).status == "completed"


def test_a_fallback_is_followed_by_the_recovery_as_well() -> None:
    world, _ = trained("a", "b", "c", model=MODEL)
    erasure_id = forget(
        world, "a", "pga", params=PGA, fallback="retrain", recovery_rounds=1, recovery=FEDRS
    )  # fmt: skip
    world.advance(61)
    world.tick()
    world.settle()
    assert [kinds(world, "b", "c") for _ in range(4)] == [{"train"}] * 3 + [{"restricted_training"}]
    assert world.erasure(erasure_id).status == "completed"


def test_plain_recovery_changes_nothing() -> None:
    worlds = []
    for recovery in (None, RecoveryWanted("plain", {})):
        world, run_id = trained("a", "b", "c", model=MODEL)
        world.fence("a", method="retrain", recovery_rounds=2, recovery=recovery)
        world.settle()
        go_on(world, 5)
        worlds.append([checkpoint.digest for checkpoint in world.checkpoints(run_id)])
    assert worlds[0] == worlds[1][: len(worlds[0])]


def test_generated_samples_may_exceed_what_was_agreed_with_a_client_and_not_by_more_than_twice() -> None:
    from dataclasses import replace

    world, _ = trained("a", "b", "c", model=MODEL)
    world.state = world.state.put(replace(world.state.clients[world.client("b")], max_samples=10))
    forget(world, "a", "not", recovery_rounds=1, recovery=RecoveryWanted("imba_ulrc", {"skewed_class": 8}))
    (grant,) = world.claim("b")
    with pytest.raises(Rejected, match="21 samples are claimed"):
        world.submit(grant.task, num_samples=21)
    world.submit(grant.task, num_samples=20)


def test_a_running_run_finishes_its_round_before_it_recovers() -> None:
    world, run_id = with_run("a", "b", stop={"rounds": 4})
    go_on(world, 1)
    world.send(m.RecoverRun(run_id, FEDRS, 2))
    world.settle()
    seen = [kinds(world, "a", "b") for _ in range(4)]
    assert seen == [{"train"}, {"restricted_training"}, {"restricted_training"}, set()]
    assert world.run(run_id).status == "completed" and world.cohort(run_id).round == 4


def test_a_class_is_found_in_the_middle_of_a_run_by_comparing_with_an_older_model() -> None:
    world = World()
    world.enrol("a", "b")
    world.store_blob(DATA)
    run_id = world.create_run(stop={"rounds": 2}, **JUDGED)
    world.settle()
    go_on(world, 1)
    older = next(c.digest for c in world.checkpoints(run_id) if c.round == 1)
    world.send(m.RecoverRun(run_id, IMBA, 1, older))
    world.settle()
    assert [kinds(world, "a", "b") for _ in range(2)] == [{"train"}, {"oversampled_training"}]
    assert world.run(run_id).status == "completed"


def test_asynchronous_clients_recover_too() -> None:
    training = {"algorithm": "fedbuff", "concurrency": 2, "buffer_size": 2}
    world, _ = judged("a", "b", "c", training=training)
    erasure_id = forget(world, "a", "not", recovery_rounds=2, recovery=IMBA)
    for _ in range(6):
        assert kinds(world, "b", "c") <= {"oversampled_training"}
    assert world.erasure(erasure_id).status == "completed", world.erasure(erasure_id).reason


def test_trees_recover_in_lock_step() -> None:
    world, run_id = judged("a", "b", "c", "d", topology={"kind": "tree"})
    erasure_id = world.fence("a", method="reinit", recovery_rounds=2, recovery=IMBA)
    world.settle()
    for _ in range(6):
        assert kinds(world, "b", "c", "d") <= {"oversampled_training", "train"}
    assert world.erasure(erasure_id).status == "completed", world.erasure(erasure_id).reason
    assert world.run(run_id).status == "completed"


def test_only_one_recovery_at_a_time_and_none_of_what_was_given_up() -> None:
    world, run_id = trained("a", "b", "c", model=MODEL)
    world.send(m.RecoverRun(run_id, FEDRS, 2))
    with pytest.raises(Rejected, match="recovering already"):
        world.send(m.RecoverRun(run_id, FEDRS, 2))
    world.send(m.CancelRun(run_id, "enough"))
    with pytest.raises(Rejected, match="nothing is trained in it any more"):
        world.send(m.RecoverRun(run_id, FEDRS, 2))
    fresh, fresh_id = with_run("a", "b")
    fresh.state = fresh.state.put(_without_model(fresh.cohort(fresh_id)))
    with pytest.raises(Rejected, match="no trained model"):
        fresh.send(m.RecoverRun(fresh_id, FEDRS, 2))


def _without_model(cohort: Cohort) -> Cohort:
    from dataclasses import replace

    return replace(cohort, head_id=None, head_digest=None)


def test_a_recovery_knows_which_of_its_stages_a_round_belongs_to() -> None:
    after = Recover(until_round=7, method="fedrs", from_round=5)
    recovery = Recover(until_round=5, from_round=2, then=after)
    assert [recovery.at(round) for round in (2, 3, 5, 6, 7, 8)] == [None, recovery, recovery, after, after, None]
    assert recovery.last_round == 7
