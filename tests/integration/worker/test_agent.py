"""A whole agent against a coordinator that misbehaves as scripted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from services.training.local_spec import LocalTraining
from tests.support.scripted_coordinator import Cut, Refuse, ScriptedCoordinator, Slow
from tests.support.serving import serve_until
from worker.agent import Ending
from worker.settings import WorkerOptions

pytestmark = pytest.mark.anyio

FIRST, SECOND = UUID(int=1), UUID(int=2)
ENDLESS = LocalTraining(epochs=10_000, batch_size=1)


def submitted(coordinator: ScriptedCoordinator) -> list[UUID]:
    return [task_id for task_id, _ in coordinator.submissions]


async def test_a_train_task_ends_with_its_update_stored_and_submitted(
    coordinator: ScriptedCoordinator, options: WorkerOptions, weights: bytes
) -> None:
    coordinator.offer("alice", coordinator.grant(1, weights))
    assert await serve_until(options, lambda: bool(coordinator.submissions)) is Ending.DONE
    [(task_id, submission)] = coordinator.submissions
    assert task_id == FIRST
    assert submission.update in coordinator.blobs
    assert submission.num_samples == 8
    assert {"loss", "seconds"} <= submission.metrics.keys()


@pytest.mark.parametrize(("takes_results", "requests"), [(True, ["put"]), (False, ["put", "submit"])])
async def test_a_small_update_is_handed_in_with_its_upload_where_the_coordinator_takes_it(
    coordinator: ScriptedCoordinator, options: WorkerOptions, weights: bytes, takes_results: bool, requests: list[str]
) -> None:
    coordinator.takes_results = takes_results
    coordinator.offer("alice", coordinator.grant(1, weights))
    assert await serve_until(options, lambda: bool(coordinator.submissions)) is Ending.DONE
    [(task_id, submission)] = coordinator.submissions
    assert (task_id, submission.num_samples) == (FIRST, 8)
    assert submission.update in coordinator.blobs
    assert [call.operation for call in coordinator.calls if call.operation in ("put", "submit")] == requests


async def test_an_upload_that_broke_is_submitted_by_itself(
    coordinator: ScriptedCoordinator, options: WorkerOptions, weights: bytes
) -> None:
    """Only the coordinator knows whether the result was taken with it."""
    coordinator.takes_results = True
    coordinator.script["put"].append(Cut(20))
    coordinator.offer("alice", coordinator.grant(1, weights))
    await serve_until(options, lambda: bool(coordinator.submissions))
    [(task_id, submission)] = coordinator.submissions
    assert task_id == FIRST and submission.update in coordinator.blobs
    assert coordinator.count("submit") == 1


async def test_an_evaluate_task_brings_figures_and_no_update(
    coordinator: ScriptedCoordinator, options: WorkerOptions, weights: bytes
) -> None:
    coordinator.offer("alice", coordinator.grant(1, weights, kind="evaluate"))
    await serve_until(options, lambda: bool(coordinator.submissions))
    [(_, submission)] = coordinator.submissions
    assert submission.update is None
    assert submission.metrics["accuracy"] == 0.75
    assert submission.metrics["loss"] == 0.5
    assert submission.num_samples == 8


async def test_the_same_grant_gives_the_same_update_also_from_models_kept_in_memory(
    coordinator: ScriptedCoordinator, options: WorkerOptions, weights: bytes
) -> None:
    grant = coordinator.grant(1, weights)
    for again in (grant, coordinator.grant(2, weights), grant):
        coordinator.offer("alice", again)
    await serve_until(options, lambda: len(coordinator.submissions) == 3)
    first, other, again_first = (submission.update for _, submission in coordinator.submissions)
    assert first == again_first != other


async def test_the_model_of_the_next_task_is_not_downloaded_twice(
    coordinator: ScriptedCoordinator, options: WorkerOptions, weights: bytes
) -> None:
    coordinator.offer("alice", coordinator.grant(1, weights), coordinator.grant(2, weights))
    await serve_until(options, lambda: len(coordinator.submissions) == 2)
    assert coordinator.count("get") == 1


@pytest.mark.parametrize("code", ["lease-lost", "epoch-fenced", "round-closed", "too-stale", "already-submitted"])
async def test_a_refused_submission_is_dropped_and_work_claimed_again(
    coordinator: ScriptedCoordinator, options: WorkerOptions, weights: bytes, code: str
) -> None:
    coordinator.script["submit"].append(Refuse(code, 409))
    coordinator.offer("alice", coordinator.grant(1, weights))
    coordinator.offer("alice", coordinator.grant(2, weights))
    await serve_until(options, lambda: bool(coordinator.submissions))
    assert submitted(coordinator) == [SECOND]
    assert not coordinator.failures
    assert len(coordinator.sessions) == 1


async def test_a_cancelled_task_stops_soon_and_the_next_one_is_done(
    coordinator: ScriptedCoordinator, options: WorkerOptions, weights: bytes
) -> None:
    coordinator.cancelled.add(FIRST)
    coordinator.offer("alice", coordinator.grant(1, weights, local=ENDLESS))
    coordinator.offer("alice", coordinator.grant(2, weights))
    await serve_until(options, lambda: bool(coordinator.submissions))
    assert submitted(coordinator) == [SECOND]
    assert not coordinator.failures


async def test_a_lease_lost_at_a_heartbeat_stops_the_work(
    coordinator: ScriptedCoordinator, options: WorkerOptions, weights: bytes
) -> None:
    coordinator.script["heartbeat"].append(Refuse("lease-lost", 409))
    coordinator.offer("alice", coordinator.grant(1, weights, local=ENDLESS))
    coordinator.offer("alice", coordinator.grant(2, weights))
    await serve_until(options, lambda: bool(coordinator.submissions))
    assert submitted(coordinator) == [SECOND]


async def test_every_task_of_a_claim_is_kept_alive_while_the_first_one_trains(
    coordinator: ScriptedCoordinator, options: WorkerOptions, weights: bytes
) -> None:
    coordinator.offer("alice", coordinator.grant(1, weights, local=ENDLESS), coordinator.grant(2, weights))

    def first_is_cancelled_and_second_submitted() -> bool:
        if {task_id for task_id, _ in coordinator.heartbeats} == {FIRST, SECOND}:
            coordinator.cancelled.add(FIRST)
        return bool(coordinator.submissions)

    await serve_until(options, first_is_cancelled_and_second_submitted)
    assert submitted(coordinator) == [SECOND]


async def test_heartbeats_go_on_during_a_long_upload(
    coordinator: ScriptedCoordinator, options: WorkerOptions, weights: bytes
) -> None:
    coordinator.script["put"].append(Slow(1.0))
    coordinator.offer("alice", coordinator.grant(1, weights))
    await serve_until(options, lambda: bool(coordinator.submissions))
    [put] = [call for call in coordinator.calls if call.operation == "put"]
    beats = [call for call in coordinator.calls if call.operation == "heartbeat" and 0 < call.at - put.at < 1.0]
    assert len(beats) >= 5


async def test_slow_heartbeats_do_not_hold_up_the_work(
    coordinator: ScriptedCoordinator, options: WorkerOptions, weights: bytes
) -> None:
    coordinator.script["heartbeat"].extend([Slow(8.0)] * 5)
    coordinator.script["put"].append(Slow(0.3))
    coordinator.offer("alice", coordinator.grant(1, weights))
    await serve_until(options, lambda: bool(coordinator.submissions), within_s=8.0)
    assert coordinator.count("heartbeat") == 1


@pytest.mark.parametrize(("code", "status"), [("client-removed", 403), ("forbidden", 403), ("protocol-too-old", 426)])
async def test_an_agent_that_is_told_to_stop_stops(
    coordinator: ScriptedCoordinator, options: WorkerOptions, code: str, status: int
) -> None:
    coordinator.script["claim"].append(Refuse(code, status))
    assert await serve_until(options, lambda: False) is Ending.STOPPED
    assert coordinator.count("claim") == 1


async def test_an_unknown_credential_stops_the_agent(coordinator: ScriptedCoordinator, options: WorkerOptions) -> None:
    assert await serve_until(replace(options, token="token-of-mallory"), lambda: False) is Ending.STOPPED


async def test_an_agent_removed_while_training_stops_at_the_next_heartbeat(
    coordinator: ScriptedCoordinator, options: WorkerOptions, weights: bytes
) -> None:
    coordinator.script["heartbeat"].append(Refuse("client-removed", 403))
    coordinator.offer("alice", coordinator.grant(1, weights, local=ENDLESS))
    assert await serve_until(options, lambda: False) is Ending.STOPPED


async def test_an_exception_in_the_clients_code_is_reported_without_its_message(
    coordinator: ScriptedCoordinator, options: WorkerOptions, weights: bytes
) -> None:
    coordinator.offer("alice", coordinator.grant(1, weights))
    await serve_until(replace(options, data="quotes data"), lambda: bool(coordinator.failures))
    [(_, failure)] = coordinator.failures
    assert not failure.retryable
    assert "ValueError" in failure.reason
    assert "in loss" in failure.log_tail
    assert "Jane Doe" not in failure.model_dump_json()


@pytest.mark.parametrize(
    ("behaviour", "retryable", "reason"),
    [("out of memory", True, "MemoryError"), ("diverges", False, "loss became nan")],
)
async def test_a_failure_says_whether_trying_again_could_help(
    coordinator: ScriptedCoordinator,
    options: WorkerOptions,
    weights: bytes,
    behaviour: str,
    retryable: bool,
    reason: str,
) -> None:
    coordinator.offer("alice", coordinator.grant(1, weights))
    await serve_until(replace(options, data=behaviour), lambda: bool(coordinator.failures))
    [(_, failure)] = coordinator.failures
    assert failure.retryable is retryable
    assert reason in failure.reason


async def test_weights_that_do_not_fit_the_model_are_reported(
    coordinator: ScriptedCoordinator, options: WorkerOptions
) -> None:
    coordinator.offer("alice", coordinator.grant(1, b"not a model"))
    await serve_until(options, lambda: bool(coordinator.failures))
    assert "not-safetensors" in coordinator.failures[0][1].reason


async def test_a_model_that_is_gone_is_reported_as_worth_another_try(
    coordinator: ScriptedCoordinator, options: WorkerOptions, weights: bytes
) -> None:
    coordinator.offer("alice", coordinator.grant(1, weights))
    coordinator.blobs.clear()
    await serve_until(options, lambda: bool(coordinator.failures))
    assert coordinator.failures[0][1].retryable


async def test_an_update_that_the_coordinator_lost_is_uploaded_and_submitted_again(
    coordinator: ScriptedCoordinator, options: WorkerOptions, weights: bytes
) -> None:
    coordinator.script["submit"].append(Refuse("blob-missing", 409))
    coordinator.offer("alice", coordinator.grant(1, weights))
    await serve_until(options, lambda: bool(coordinator.submissions))
    assert coordinator.count("head") == 1
    assert submitted(coordinator) == [FIRST]


async def test_work_in_hand_outlives_a_restart_of_the_coordinator(
    coordinator: ScriptedCoordinator, options: WorkerOptions, weights: bytes
) -> None:
    coordinator.offer("alice", coordinator.grant(1, weights, local=LocalTraining(epochs=4, batch_size=1)))
    stopped: list[bool] = []

    def restarted_and_submitted() -> bool:
        if coordinator.heartbeats and not stopped:
            coordinator.stop()
            stopped.append(True)
            coordinator.start()
        return bool(coordinator.submissions)

    await serve_until(replace(options, data="slow"), restarted_and_submitted)
    assert stopped
    assert coordinator.submissions[0][1].lease_token == "lease-1"
    assert len(coordinator.sessions) == 1


async def test_after_a_claim_without_answer_the_session_is_opened_again(
    coordinator: ScriptedCoordinator, options: WorkerOptions, weights: bytes
) -> None:
    coordinator.script["claim"].append(Cut())
    coordinator.offer("alice", coordinator.grant(1, weights))
    await serve_until(options, lambda: bool(coordinator.submissions))
    assert len(coordinator.sessions) == 2


async def test_an_unavailable_coordinator_is_asked_again(
    coordinator: ScriptedCoordinator, options: WorkerOptions, weights: bytes
) -> None:
    for operation in ("session", "claim", "get", "put", "submit"):
        coordinator.script[operation].extend([Refuse("unavailable", 503, retry_after="0"), Cut(), Refuse("x", 502)])
    coordinator.offer("alice", coordinator.grant(1, weights))
    await serve_until(options, lambda: bool(coordinator.submissions))
    assert submitted(coordinator) == [FIRST]


async def test_no_update_is_left_behind_on_disk(
    coordinator: ScriptedCoordinator,
    options: WorkerOptions,
    weights: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    coordinator.offer("alice", coordinator.grant(1, weights))
    await serve_until(options, lambda: bool(coordinator.submissions))
    assert not list(scratch.rglob("*.safetensors"))
