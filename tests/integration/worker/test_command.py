"""`worker.main`: exit codes, signals, fleets, and real training on the digits; the agent as its users start it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

import worker.main
from services.models.kernels import init_model
from services.tensors import codec
from services.tensors.streams import StoredFile
from services.training.local_spec import LocalTraining
from services.wire.v1.runs import ModelSpec
from tests.support.kernels import over_files
from tests.support.scripted_coordinator import Refuse, ScriptedCoordinator
from worker.main import main
from worker.settings import WorkerOptions

MLP = ModelSpec(name="mlp", params={"input_shape": [8, 8], "num_classes": 10})
ENDLESS = LocalTraining(epochs=10_000, batch_size=1)

COMMAND = """
import sys
from worker.main import main
from worker.settings import WorkerOptions
url, task, cache, grace, data = sys.argv[1:]
from pathlib import Path
sys.exit(main(WorkerOptions(coordinator=url, token="token-of-alice", task=task, data=data or None,
                            cache_dir=Path(cache), grace_s=float(grace), display="log")))
"""


@contextmanager
def agent_process(options: WorkerOptions, *, grace_s: float, data: str = "") -> Iterator[subprocess.Popen[bytes]]:
    arguments = [str(options.coordinator), options.task, str(options.cache_dir), str(grace_s), data]
    process = subprocess.Popen([sys.executable, "-c", COMMAND, *arguments])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_once_does_one_claims_work_and_exits_zero(
    coordinator: ScriptedCoordinator, options: WorkerOptions, weights: bytes
) -> None:
    coordinator.offer("alice", coordinator.grant(1, weights))
    coordinator.offer("alice", coordinator.grant(2, weights))
    assert main(replace(options, once=True)) == 0
    assert len(coordinator.submissions) == 1


def test_once_with_nothing_to_do_exits_three(coordinator: ScriptedCoordinator, options: WorkerOptions) -> None:
    assert main(replace(options, once=True, wait_s=0.2)) == 3
    assert coordinator.count("claim") >= 1


def test_once_without_a_coordinator_exits_one(coordinator: ScriptedCoordinator, options: WorkerOptions) -> None:
    coordinator.stop()
    assert main(replace(options, once=True, wait_s=0.2)) == 1
    coordinator.start()


def test_a_task_that_cannot_be_loaded_exits_two_before_any_request(
    coordinator: ScriptedCoordinator, options: WorkerOptions
) -> None:
    assert main(replace(options, task="nowhere.py:Task")) == 2
    assert not coordinator.calls


def test_digits_are_trained_end_to_end_and_the_update_improves_the_model(
    coordinator: ScriptedCoordinator, options: WorkerOptions, tmp_path: Path
) -> None:
    over_files(init_model, {"model": MLP.model_dump(), "seed": 1}, {}, tmp_path / "base")
    base = (tmp_path / "base").read_bytes()
    digits = replace(options, task="builtin:image-classifier", data="builtin:digits#part=0/5", once=True)
    local = LocalTraining(epochs=8, batch_size=16, learning_rate=0.2)
    coordinator.offer("alice", coordinator.grant(1, base, model=MLP, local=local))
    assert main(digits) == 0
    [(_, submission)] = coordinator.submissions
    assert submission.update is not None
    (tmp_path / "update").write_bytes(coordinator.blobs[submission.update])
    before, delta = codec.read(StoredFile(tmp_path / "base")), codec.read(StoredFile(tmp_path / "update"))
    codec.write_file(tmp_path / "after", {name: before[name] + delta[name] for name in before})
    after = (tmp_path / "after").read_bytes()
    coordinator.offer(
        "alice",
        coordinator.grant(2, base, model=MLP, kind="evaluate"),
        coordinator.grant(3, after, model=MLP, kind="evaluate"),
    )
    assert main(digits) == 0
    accuracy_before, accuracy_after = (result.metrics["accuracy"] for _, result in coordinator.submissions[1:])
    assert accuracy_before < 0.4
    assert accuracy_after > 0.8


def test_a_fleet_serves_all_its_clients_and_one_bad_client_does_not_stop_the_others(
    coordinator: ScriptedCoordinator, options: WorkerOptions, weights: bytes, tmp_path: Path
) -> None:
    (tmp_path / "bob.token").write_text("token-of-bob\n")
    (tmp_path / "fleet.yaml").write_text(
        f"""
coordinator: {coordinator.url}
defaults: {{task: "{options.task}"}}
clients:
  - token: token-of-alice
  - token_file: {tmp_path}/bob.token
  - {{token: token-of-mallory}}
  - {{token: token-of-alice, task: "nowhere.py:Task"}}
  - {{token_file: {tmp_path}/missing.token}}
"""
    )
    coordinator.offer("alice", coordinator.grant(1, weights))
    coordinator.offer("bob", coordinator.grant(2, weights))
    fleet = WorkerOptions(fleet=tmp_path / "fleet.yaml", jobs=2, once=True, cache_dir=options.cache_dir, display="log")
    assert main(fleet) == 2
    assert {int(task_id) for task_id, _ in coordinator.submissions} == {1, 2}
    assert coordinator.count("get") == 1


def test_sigterm_hands_the_task_back_and_exits_zero(
    coordinator: ScriptedCoordinator, options: WorkerOptions, weights: bytes
) -> None:
    coordinator.offer("alice", coordinator.grant(1, weights, local=ENDLESS))
    with agent_process(options, grace_s=0.2) as process:
        coordinator.wait_for(lambda: bool(coordinator.heartbeats), within_s=90)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    [(_, failure)] = coordinator.failures
    assert failure.retryable
    assert failure.reason == "agent shutting down"


def test_sigterm_lets_a_task_finish_within_its_grace(
    coordinator: ScriptedCoordinator, options: WorkerOptions, weights: bytes
) -> None:
    coordinator.offer("alice", coordinator.grant(1, weights, local=LocalTraining(epochs=4, batch_size=1)))
    with agent_process(options, grace_s=60, data="slow") as process:
        coordinator.wait_for(lambda: bool(coordinator.heartbeats), within_s=90)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert len(coordinator.submissions) == 1
    assert not coordinator.failures


def test_a_second_signal_exits_at_once(
    coordinator: ScriptedCoordinator, options: WorkerOptions, weights: bytes
) -> None:
    coordinator.offer("alice", coordinator.grant(1, weights, local=ENDLESS))
    with agent_process(options, grace_s=600) as process:
        coordinator.wait_for(lambda: bool(coordinator.heartbeats), within_s=90)
        process.send_signal(signal.SIGTERM)
        beats = len(coordinator.heartbeats)
        coordinator.wait_for(lambda: len(coordinator.heartbeats) > beats + 2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM


def test_a_revoked_credential_ends_the_command_with_one(
    coordinator: ScriptedCoordinator, options: WorkerOptions
) -> None:
    coordinator.script["session"].append(Refuse("unauthenticated", 401))
    assert main(options) == 1


def test_the_readmes_own_task_trains(coordinator: ScriptedCoordinator, options: WorkerOptions, tmp_path: Path) -> None:
    readme = Path(worker.main.__file__).with_name("README.md").read_text()
    (tmp_path / "prices.py").write_text(readme.partition("```python\n")[2].partition("```")[0])
    x = np.linspace(0, 1, 40, dtype=np.float32).reshape(20, 2)
    np.savez(tmp_path / "prices.npz", x=x, y=x.sum(axis=1))
    prices = replace(options, task=f"{tmp_path}/prices.py:Prices", data=f"{tmp_path}/prices.npz", once=True)
    shapes = {"0.weight": (16, 2), "0.bias": (16,), "2.weight": (1, 16), "2.bias": (1,)}
    codec.write_file(tmp_path / "init", {name: np.full(shape, 0.1, np.float32) for name, shape in shapes.items()})
    init = (tmp_path / "init").read_bytes()
    coordinator.offer("alice", coordinator.grant(1, init), coordinator.grant(2, init, kind="evaluate"))
    assert main(prices) == 0
    trained, evaluated = (submission for _, submission in coordinator.submissions)
    assert trained.num_samples == 16
    assert evaluated.num_samples == 4
