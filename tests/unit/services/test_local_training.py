from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from services.core import digests
from services.core.errors import Rejected
from services.data.sources import Dataset, load
from services.tensors import codec
from services.tensors.errors import KernelFailed
from services.tensors.streams import StoredFile
from services.training import devices, optimizers
from services.training.evaluation import evaluate, evaluate_model
from services.training.local import (
    TrainingFailed,
    TrainingStopped,
    delta,
    load_weights,
    snapshot,
    train,
    write_update,
)
from services.training.local_spec import LocalTraining
from services.training.task import BUILTIN_TASKS, Classifier
from services.wire.v1.runs import ModelSpec
from tests.support.kernels import over_files

CPU = torch.device("cpu")
OPTIMIZERS: list[Literal["sgd", "adamw"]] = ["sgd", "adamw"]
SPEC = ModelSpec(name="mlp", params={"input_shape": [8, 8], "num_classes": 10, "hidden": [16]})


@pytest.fixture(scope="module")
def digits() -> Classifier:
    return Classifier(load("digits#part=0/5"))


def update_bytes(task: Classifier, path: Path, local: LocalTraining, seed: int, spec: ModelSpec = SPEC) -> bytes:
    model = task.model(spec)
    base = snapshot(model)
    train(task, model, local, seed, CPU)
    write_update(path, delta(base, model.state_dict()))
    return path.read_bytes()


@pytest.mark.parametrize(
    "local",
    [
        LocalTraining(),
        LocalTraining(momentum=0.9, weight_decay=0.01, clip_norm=0.5, epochs=2),
        LocalTraining(optimizer="adamw", learning_rate=0.01),
        LocalTraining(optimizer="adahessian", learning_rate=0.02),
    ],
    ids=["plain", "momentum", "adamw", "adahessian"],
)
def test_equal_seeds_give_bit_identical_updates(digits: Classifier, tmp_path: Path, local: LocalTraining) -> None:
    one, same, other = (update_bytes(digits, tmp_path / "update", local, seed) for seed in (3, 3, 4))
    assert one == same != other


def test_convolutional_training_is_bit_identical_too(digits: Classifier, tmp_path: Path) -> None:
    spec = ModelSpec(name="cnn", params={"input_shape": [8, 8], "num_classes": 10})
    one, same = (update_bytes(digits, tmp_path / "update", LocalTraining(), 1, spec) for _ in range(2))
    assert one == same


def test_zero_epochs_give_an_exact_zero_update(digits: Classifier, tmp_path: Path) -> None:
    update_bytes(digits, tmp_path / "update", LocalTraining(epochs=0), 0)
    assert all(not array.any() for array in codec.read(StoredFile(tmp_path / "update")).values())


def test_training_learns_digits(digits: Classifier) -> None:
    model = digits.model(SPEC)
    before = evaluate(digits, model, CPU)
    metrics = train(digits, model, LocalTraining(epochs=20, learning_rate=0.2), 0, CPU)
    after = evaluate(digits, model, CPU)
    assert before["accuracy"] < 0.3 < 0.8 < after["accuracy"]
    assert after["num_samples"] == digits.num_eval == 72
    assert 0 < metrics["loss"] < before["loss"]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers_have_the_bits_of_torch(optimizer: Literal["sgd", "adamw"]) -> None:
    local = LocalTraining(optimizer=optimizer, learning_rate=0.1, momentum=0.9, weight_decay=0.05)
    start = torch.randn(50, generator=torch.Generator().manual_seed(0))
    ours, theirs = start.clone().requires_grad_(), start.clone().requires_grad_()
    mine = optimizers.make(local, [ours], seed=0)
    reference: torch.optim.Optimizer = (
        torch.optim.SGD([theirs], lr=0.1, momentum=0.9, weight_decay=0.05)
        if optimizer == "sgd"
        else torch.optim.AdamW([theirs], lr=0.1, weight_decay=0.05)
    )
    for _ in range(5):
        for tensor in (ours, theirs):
            torch.autograd.backward((tensor.sin() * tensor).sum())
        mine.step()
        reference.step()
        reference.zero_grad()
        assert ours.grad is None
    assert torch.equal(ours, theirs)


def test_parameter_without_a_gradient_stays_put(digits: Classifier) -> None:
    used, unused = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    for optimizer in OPTIMIZERS:
        steps = optimizers.make(LocalTraining(optimizer=optimizer, momentum=0.5), [unused, used], seed=0)
        torch.autograd.backward(used.sum())
        steps.step()
    assert unused.tolist() == [1, 1]
    assert used.tolist() != [1, 1]


def test_loss_that_is_not_finite_is_refused_before_the_step(digits: Classifier) -> None:
    class Broken(Classifier):
        def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
            return super().loss(model, batch) * float("nan")

    task = Broken(load("digits#part=0/5"))
    model = task.model(SPEC)
    base = snapshot(model)
    with pytest.raises(TrainingFailed, match="learning_rate"):
        train(task, model, LocalTraining(), 0, CPU)
    assert all(torch.equal(base[name], tensor) for name, tensor in model.state_dict().items())


def test_update_that_is_not_finite_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(TrainingFailed, match="'w'"):
        write_update(tmp_path / "update", {"w": torch.tensor([1.0, float("inf")])})
    assert not (tmp_path / "update").exists()


def test_clip_norm_bounds_the_step(digits: Classifier) -> None:
    model = digits.model(SPEC)
    base = snapshot(model)
    local = LocalTraining(batch_size=1000, learning_rate=1.0, clip_norm=0.01)
    train(digits, model, local, 0, CPU)
    norm = torch.cat([tensor.flatten() for tensor in delta(base, model.state_dict()).values()]).norm()
    assert norm.item() == pytest.approx(0.01, rel=1e-3)


def test_progress_rises_to_one(digits: Classifier) -> None:
    seen: list[float] = []
    train(digits, digits.model(SPEC), LocalTraining(epochs=2, batch_size=100), 0, CPU, on_progress=seen.append)
    assert seen == sorted(seen)
    assert len(seen) == 6
    assert seen[-1] == 1.0


def test_training_stops_when_told(digits: Classifier) -> None:
    with pytest.raises(TrainingStopped):
        train(digits, digits.model(SPEC), LocalTraining(), 0, CPU, should_stop=lambda: True)


def test_task_without_batches_fails_clearly() -> None:
    class Empty(Classifier):
        def train_batches(self, batch_size: int, seed: int) -> Iterator[Any]:
            return iter(())

    task = Empty(load("digits#part=0/5"))
    with pytest.raises(TrainingFailed, match="no training batches"):
        train(task, task.model(SPEC), LocalTraining(), 0, CPU)


def test_layers_that_draw_are_seeded_and_the_global_generator_is_put_back() -> None:
    class WithDropout(Classifier):
        def model(self, spec: ModelSpec) -> torch.nn.Module:
            return torch.nn.Sequential(super().model(spec), torch.nn.Dropout(0.5))

    task = WithDropout(load("digits#part=0/5"))
    before = torch.get_rng_state()
    results = []
    for _ in range(2):
        model = task.model(SPEC)
        train(task, model, LocalTraining(), 5, CPU)
        results.append(model.state_dict())
        torch.rand(3)
    assert all(torch.equal(results[0][name], tensor) for name, tensor in results[1].items())
    torch.set_rng_state(before)
    train(task, task.model(SPEC), LocalTraining(), 5, CPU)
    assert torch.equal(before, torch.get_rng_state())


def test_delta_leaves_integer_buffers_out_and_keeps_dtypes() -> None:
    base = {"w": torch.ones(2, dtype=torch.bfloat16), "n": torch.tensor(3)}
    found = delta(base, {"w": torch.full((2,), 1.5, dtype=torch.bfloat16), "n": torch.tensor(9)})
    assert found.keys() == {"w"}
    assert found["w"].dtype == torch.bfloat16
    assert found["w"].tolist() == [0.5, 0.5]


def test_an_epoch_holds_every_sample_once(digits: Classifier) -> None:
    data = Dataset(
        np.arange(10, dtype=np.float32).reshape(10, 1), np.arange(10), np.zeros((0, 1), np.float32), np.array([], int)
    )
    batches = list(Classifier(data).train_batches(4, seed=1))
    assert [len(labels) for _, labels in batches] == [4, 4, 2]
    labels = torch.cat([labels for _, labels in batches]).tolist()
    assert sorted(labels) == list(range(10)) != labels
    assert all(torch.equal(inputs[:, 0].long(), labels) for inputs, labels in batches)


def test_evaluating_without_samples_gives_zeros() -> None:
    data = load("digits#part=0/5")
    task = Classifier(Dataset(data.x_train, data.y_train, data.x_train[:0], data.y_train[:0]))
    assert evaluate(task, task.model(SPEC), CPU) == {"accuracy": 0.0, "loss": 0.0, "num_samples": 0.0}


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        (ModelSpec(name="mlp", params={"input_shape": [9, 9], "num_classes": 10}), "input_shape"),
        (ModelSpec(name="mlp", params={"input_shape": [8, 8], "num_classes": 5}), "class 9"),
        (ModelSpec(name="custom"), "--task"),
    ],
)
def test_model_that_does_not_fit_the_data_is_rejected(digits: Classifier, spec: ModelSpec, hint: str) -> None:
    with pytest.raises(Rejected, match=hint):
        digits.model(spec)


def test_builtin_tasks_are_classifiers() -> None:
    assert set(BUILTIN_TASKS) == {"classifier", "image-classifier", "tabular-classifier"}


def evaluation_inputs(folder: Path, x: Any, y: Any) -> tuple[dict[str, Any], dict[str, Path]]:
    write_update(folder / "weights", Classifier(load("digits#part=0/5")).model(SPEC).state_dict())
    codec.write_file(folder / "data", {"x": x, "y": y})
    digest = digests.of_bytes((folder / "data").read_bytes())
    params = {"model": SPEC.model_dump(), "weights": "w", "data": digest, "batch_size": 50}
    return params, {"w": folder / "weights", digest: folder / "data"}


def test_kernel_judges_raw_images_exactly_as_a_client_does(digits: Classifier, tmp_path: Path) -> None:
    scaled = load("digits")
    raw = np.rint(scaled.x_test[:, 0] * 255).astype(np.uint8)
    params, inputs = evaluation_inputs(tmp_path, raw, scaled.y_test.astype(np.uint8))
    task = Classifier(scaled)
    model = task.model(SPEC)
    load_weights(model, StoredFile(tmp_path / "weights"))
    expected = evaluate(task, model, CPU, batch_size=50)
    found = over_files(evaluate_model, params, inputs, tmp_path / "out")
    assert {name: value for name, value in found.items() if "/" not in name} == expected
    assert expected["num_samples"] == 360


def test_kernel_tells_classes_apart(tmp_path: Path) -> None:
    scaled = load("digits")
    params, inputs = evaluation_inputs(tmp_path, scaled.x_test, scaled.y_test)
    found = over_files(evaluate_model, params, inputs, tmp_path / "out")
    labels, counts = np.unique(scaled.y_test, return_counts=True)
    of_class = [found[f"accuracy/{label}"] for label in labels]
    assert len(of_class) == 10 and all(0 <= one <= 1 for one in of_class)
    assert np.dot(of_class, counts) == pytest.approx(found["accuracy"] * found["num_samples"])


def test_a_validation_set_is_known_by_its_digest_and_not_read_again(tmp_path: Path) -> None:
    scaled = load("digits")
    params, inputs = evaluation_inputs(tmp_path, scaled.x_test, scaled.y_test)
    first = over_files(evaluate_model, params, inputs, tmp_path / "out")
    moved = {**inputs, params["data"]: tmp_path / "nowhere"}
    assert over_files(evaluate_model, params, moved, tmp_path / "out") == first
    other, inputs = evaluation_inputs(tmp_path, scaled.x_test[:7], scaled.y_test[:7])
    assert over_files(evaluate_model, other, inputs, tmp_path / "out")["num_samples"] == 7


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.zeros((2, 8, 8), np.uint8), np.zeros(3, np.int64)),
        (np.zeros((2, 8, 8), np.uint8), np.zeros(2, np.float32)),
        (np.zeros((2, 9, 9), np.uint8), np.zeros(2, np.int64)),
        (np.zeros((2, 8, 8), np.uint8), np.full(2, 10)),
        (np.zeros((0, 8, 8), np.uint8), np.zeros(0, np.int64)),
    ],
    ids=["lengths", "labels", "shape", "class", "empty"],
)
def test_validation_blob_that_does_not_fit_fails_the_kernel(tmp_path: Path, x: Any, y: Any) -> None:
    params, inputs = evaluation_inputs(tmp_path, x, y)
    with pytest.raises(KernelFailed):
        over_files(evaluate_model, params, inputs, tmp_path / "out")


def test_unknown_devices_are_refused() -> None:
    assert devices.pick("cpu") == CPU
    assert devices.describe(CPU).kind == "cpu"
    with pytest.raises(ValueError, match="auto, cpu"):
        devices.pick("mps")
