"""Whether the task does what a worker asks of it: `pytest` in this directory."""

from __future__ import annotations

from pathlib import Path

import torch

from services.training.local import train
from services.training.local_spec import LocalTraining
from services.wire.v1.runs import ModelSpec
from worker.first_weights import first_weights
from worker.task_loading import load_task

FILE = Path(__file__).with_name("task.py")
SPEC = ModelSpec(name="custom", params={"width": 16})
LOCAL = LocalTraining(epochs=2, batch_size=16, learning_rate=0.2)


def test_the_task_is_loaded_as_a_worker_loads_it() -> None:
    task = load_task(f"{FILE}:Task", "0")
    assert task.num_train > 0 and task.num_eval > 0


def test_the_same_seed_trains_the_same_model() -> None:
    def trained() -> list[torch.Tensor]:
        task = load_task(f"{FILE}:Task", "0")
        model = task.model(SPEC)
        model.load_state_dict(first_weights(task, SPEC, seed=0))
        train(task, model, LOCAL, seed=1, device=torch.device("cpu"))
        return list(model.state_dict().values())

    assert all(torch.equal(one, other) for one, other in zip(trained(), trained(), strict=True))


def test_training_lowers_the_loss_on_what_is_held_out() -> None:
    task = load_task(f"{FILE}:Task", "0")
    model = task.model(SPEC)
    model.load_state_dict(first_weights(task, SPEC, seed=0))

    def held_out_loss() -> float:
        with torch.no_grad():
            return sum(task.score(model, batch)[0] for batch in task.eval_batches(64))

    before = held_out_loss()
    train(task, model, LOCAL, seed=1, device=torch.device("cpu"))
    assert held_out_loss() < before
