"""Selection policies that know clients by what they sent: the profile, the order, and what a fence leaves of them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from coordinator.engine import events as e
from coordinator.engine import messages as m
from coordinator.engine.entities import Cohort, Selecting
from services.core.digests import of_json
from services.core.errors import Rejected
from tests.support.world import World, with_run

NAMES = ("a", "b", "c", "d", "e")
TWO = {"algorithm": "fedavg", "clients_per_round": 2}
VALIDATION = of_json("validation set")


def k_center(**changes: Any) -> tuple[World, UUID]:
    return with_run(*NAMES, **{"training": TWO, "selection": "k_center", "stop": {"rounds": 4}, **changes})


def learning(**changes: Any) -> tuple[World, UUID]:
    world = World()
    world.enrol(*NAMES)
    world.store_blob(VALIDATION)
    given = {"training": TWO, "selection": "dqn", "validation": {"data": VALIDATION}, "stop": {"rounds": 4}}
    run_id = world.create_run(**{**given, **changes})
    world.settle()
    return world, run_id


def profiled(world: World, *names: str) -> None:
    world.claim_and_submit(*(names or NAMES))
    world.settle()


def asked(world: World, run_id: UUID) -> list[str]:
    return sorted(t.client_name for t in world.open_tasks(world.cohort(run_id).id))


def kinds(world: World, run_id: UUID) -> list[tuple[str, int]]:
    return [(r.kind, r.number) for r in world.state.rounds.values() if r.run_id == run_id]


def order_of(cohort: Cohort) -> tuple[str, ...]:
    assert cohort.selection is not None
    return cohort.selection.order


def selected() -> list[World]:
    """Worlds in which such policies were at work: one that learns, and one whose kernel failed."""
    learnt, run_id = learning()
    profiled(learnt)
    profiled(learnt, *asked(learnt, run_id))
    failing, _ = k_center()
    failing.claim_and_submit(*NAMES)
    job = failing.lease_job("kernel")
    assert job is not None
    failing.send(m.JobFailed(job.id, job.lease_token or "", "a profile is no number", retryable=False))
    return [learnt, failing]


def test_everybody_trains_one_epoch_before_the_first_round_and_once() -> None:
    world, run_id = k_center(local={"epochs": 7})
    assert asked(world, run_id) == list(NAMES)
    tasks = world.open_tasks(world.cohort(run_id).id)
    assert {task.kind for task in tasks} == {"profile"}
    assert {task.local["epochs"] for task in tasks if task.local is not None} == {1}
    profiled(world)
    for _ in range(4):
        profiled(world, *asked(world, run_id))
    assert world.run(run_id).status == "completed"
    assert kinds(world, run_id) == [("profile", 1), *(("train", number) for number in (1, 2, 3, 4))]


def test_the_best_of_the_kernels_order_are_asked() -> None:
    world, run_id = k_center()
    profiled(world)
    cohort = world.cohort(run_id)
    assert asked(world, run_id) == sorted(order_of(cohort)[:2])
    assert cohort.selection is not None and cohort.selection.clients == NAMES
    assert cohort.selection.state in world.stored


def test_profiles_are_in_no_model() -> None:
    world, run_id = k_center()
    profiled(world)
    first = asked(world, run_id)
    profiled(world, *first)
    newest = world.checkpoints(run_id)[-1]
    assert newest.round == 1
    assert world.clients_in(newest) == set(first) == world.made_of[newest.id]


def test_whoever_does_not_answer_the_profile_is_still_drawn() -> None:
    world, run_id = k_center()
    world.claim_and_submit("a", "b", "c")
    world.advance(601)
    world.tick()
    world.settle()
    assert set(order_of(world.cohort(run_id))) == set(NAMES)
    (job,) = [j for j in world.state.jobs.values() if j.kernel == "k_center_order"]
    assert [one["client"] for one in job.params["profiles"]] == ["a", "b", "c"]


def test_where_everybody_is_asked_nobody_is_profiled() -> None:
    world, run_id = k_center(training={"algorithm": "fedavg"})
    assert kinds(world, run_id) == [("train", 1)]


def test_a_fence_drops_the_state_and_the_profile_is_made_again_without_the_leaver() -> None:
    world, run_id = k_center(stop={"rounds": 8})
    profiled(world)
    for _ in range(3):
        profiled(world, *asked(world, run_id))
    before = world.cohort(run_id).selection
    assert before is not None and before.state is not None
    world.fence("a", method="retrain")
    world.settle()
    cohort = world.cohort(run_id)
    assert cohort.selection is None
    assert asked(world, run_id) == ["b", "c", "d", "e"]
    profiled(world, "b", "c", "d", "e")
    after = world.cohort(run_id).selection
    assert after is not None and after.clients == ("b", "c", "d", "e")
    assert "a" not in world.provenance[after.state or ""]
    while world.erasure(next(iter(world.state.erasures))).status != "completed":
        profiled(world, *asked(world, run_id))
    assert before.state not in world.stored, "the state with the leaver in it is purged"


def test_calibration_draws_by_the_policy_that_the_request_names() -> None:
    world, run_id = with_run(*NAMES, training=TWO, stop={"rounds": 3})
    leaver, _ = asked(world, run_id)
    for _ in range(3):
        profiled(world, *asked(world, run_id))
    params = {"participants": "policy", "selection": "k_center"}
    erasure_id = world.fence(leaver, method="federaser", guarantee="approximate", params=params)
    world.settle()
    assert {t.kind for t in world.open_tasks(world.cohort(run_id).id)} == {"profile"}
    while world.erasure(erasure_id).status not in ("completed", "failed"):
        assert leaver not in asked(world, run_id)
        profiled(world, *asked(world, run_id))
    assert world.erasure(erasure_id).status == "completed"
    assert kinds(world, run_id)[3:] == [("profile", 2), ("train", 2), ("train", 3)]


def test_a_kernel_that_fails_stops_nobody() -> None:
    world, run_id = k_center()
    world.claim_and_submit(*NAMES)
    job = world.lease_job("kernel")
    assert job is not None and job.kernel == "k_center_order"
    world.send(m.JobFailed(job.id, job.lease_token or "", "a profile is no number", retryable=False))
    assert [type(event) for event in world.events if isinstance(event, e.SelectionFailed)]
    for _ in range(4):
        assert len(asked(world, run_id)) == 2
        profiled(world, *asked(world, run_id))
    assert world.run(run_id).status == "completed"


def test_a_policy_that_learns_is_told_what_the_last_round_brought() -> None:
    world, run_id = learning()
    profiled(world)
    first = asked(world, run_id)
    base = world.cohort(run_id).head_digest
    profiled(world, *first)
    jobs = [j for j in world.state.jobs.values() if j.kernel == "dqn_order"]
    assert [job.params["round"] for job in jobs] == [1, 2]
    assert jobs[0].params["observed"] is None
    told = jobs[1].params["observed"]
    assert told["base"] == base and [one["client"] for one in told["updates"]] == first
    assert jobs[1].params["state"] == jobs[0].output, "it goes on from its own state"
    assert set(jobs[1].inputs) >= {base, world.cohort(run_id).head_digest, VALIDATION}
    kept = world.cohort(run_id).selection
    assert kept is not None and kept.state == jobs[1].output
    dropped = [j.params["digest"] for j in world.state.jobs.values() if j.kind == "drop-blob"]
    assert dropped == [jobs[0].output]


def test_a_fence_in_the_middle_of_a_selection_lets_nobody_wait() -> None:
    world, run_id = k_center(stop={"rounds": 8})
    profiled(world)
    profiled(world, *asked(world, run_id))
    profiled(world, *asked(world, run_id))
    world.claim_and_submit(*asked(world, run_id))
    while (job := world.lease_job("kernel")) is not None and not (job.kernel or "").endswith("_order"):
        world.send(world.outcome_of(job))
    assert isinstance(world.cohort(run_id).pending, Selecting)
    world.fence("b", method="retrain")
    world.settle()
    assert not isinstance(world.cohort(run_id).pending, Selecting) or world.open_tasks(world.cohort(run_id).id)
    while world.run(run_id).status == "running":
        profiled(world, *asked(world, run_id))
    assert world.run(run_id).status == "completed"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"selection": "dqn"}, "validation.data"),
        (
            {"selection": "dqn", "validation": {"data": VALIDATION}, "retention": {"updates": "none"}},
            "retention.updates",
        ),
        ({"selection": "k_center", "topology": {"kind": "bi_model"}}, "draw once for all cohorts"),
        ({"selection": "k_center", "training": {"algorithm": "fats"}}, "by lot"),
        ({"selection": "nobody"}, "selection"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        with_run(*NAMES, **{"training": TWO, **changes})


def test_a_pre_trained_network_that_was_not_uploaded_is_refused() -> None:
    with pytest.raises(Rejected, match="upload it first"):
        learning(selection={"policy": "dqn", "state": of_json("nowhere")})


def test_newcomers_are_put_in_order_with_the_others() -> None:
    world, run_id = k_center(stop={"rounds": 6})
    profiled(world)
    world.enrol("f")
    world.join(run_id, "f")
    profiled(world, *asked(world, run_id))
    assert "f" in order_of(world.cohort(run_id))
    assert [kind for kind in kinds(world, run_id) if kind[0] == "profile"] == [("profile", 1)]
