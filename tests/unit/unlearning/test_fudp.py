"""FUDP: whom it asks, what it makes of the answers, and what happens where there is nothing to measure or to prune."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from services.data.dataset import Dataset
from services.methods.catalogue import UNLEARNING
from services.methods.running import objection
from services.models.build import build
from services.program.contract import Abort, AskClients, Compute, Finish, Publish
from services.tensors import codec
from services.tensors.errors import KernelFailed
from services.training.local import TrainingFailed, TrainingStopped, snapshot
from services.training.task import Classifier
from services.unlearning.fudp.client import rate_channels
from services.unlearning.fudp.kernels import prune_channels
from services.unlearning.fudp.plan import FudpProgram
from services.wire.v1.runs import ModelSpec
from tests.support.kernels import over_files
from tests.support.program_driver import HEAD, Driver, digest, erasure, update, view

CPU = torch.device("cpu")
CNN = ModelSpec(name="cnn", params={"input_shape": [1, 8, 8], "num_classes": 4})


def driver(*answers: Any, **params: Any) -> Driver:
    given = view(erasure(params={"forget_class": 3, **params}))
    return Driver(FudpProgram(), given, answer=lambda ask: answers)


def test_those_who_remain_are_asked_once_and_weighed_by_their_samples_of_the_class() -> None:
    found = driver(
        update("a", num_samples=8, class_samples=8.0),
        update("b", num_samples=40, class_samples=0.0),
        update("c", num_samples=5, class_samples=99.0),
    )
    assert isinstance(found.run(), Finish)
    (ask,) = found.taken(AskClients)
    assert (ask.kind, ask.model, ask.num_clients, ask.leavers, ask.close_at_deadline) == (
        "rate_channels", HEAD, 3, (), True,
    )  # fmt: skip
    assert ask.work is not None and ask.work.model_dump() == {"kind": "rate_channels", "forget_class": 3}
    (compute,) = found.taken(Compute)
    weighed = [{"digest": digest("a"), "weight": 8.0}, {"digest": digest("c"), "weight": 5.0}]
    assert compute.params == {"model": HEAD, "scores": weighed, "ratio": 0.1}
    (published,) = found.taken(Publish)
    assert (published.kind, published.round) == ("forgotten", 10)
    assert [(c.client, c.weight) for c in published.contributions] == [("a", 8.0), ("c", 5.0)]


@pytest.mark.parametrize("answers", [(), (update("b", class_samples=0.0),), (update("b"),)])
def test_a_class_that_nobody_has_left_is_not_pruned(answers: tuple[Any, ...]) -> None:
    end = driver(*answers).run()
    assert isinstance(end, Abort) and "samples of class 3" in end.reason


@pytest.mark.parametrize(
    ("model", "params", "reason"),
    [
        (CNN, {"forget_class": 3}, None),
        (CNN, {"forget_class": 4}, "there is no class 4: the model's classes are 0 to 3"),
        (CNN, {}, "name it in params.forget_class"),
        (ModelSpec(name="mlp", params={"input_shape": [8], "num_classes": 4}), {"forget_class": 3}, "mlp has none"),
        (ModelSpec(name="custom"), {"forget_class": 60_000}, None),
    ],
)
def test_a_model_that_cannot_forget_the_class_is_known_before(
    model: ModelSpec, params: dict[str, Any], reason: str | None
) -> None:
    found = objection(UNLEARNING["fudp"], params, model)
    assert found is None if reason is None else reason in (found or "")


def labelled(*labels: int) -> Classifier:
    inputs = np.random.default_rng(0).random((len(labels), 1, 8, 8), np.float32)
    return Classifier(Dataset(inputs, np.array(labels), inputs[:1], np.array(labels[:1])))


@pytest.mark.parametrize("labels", [(0, 1, 2, 1), (3, 3, 3)])
def test_a_client_that_cannot_tell_the_class_from_others_sends_no_scores(labels: tuple[int, ...]) -> None:
    model = build(CNN, seed=1)
    before = snapshot(model)
    assert rate_channels(labelled(*labels), model, 3, CPU) == {"class_samples": 0.0}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_client_with_one_sample_of_the_class_is_heard() -> None:
    assert rate_channels(labelled(0, 1, 3, 1), build(CNN, seed=1), 3, CPU)["class_samples"] == 1.0


def test_a_model_without_channels_fails_at_the_client_with_a_reason() -> None:
    mlp = build(ModelSpec(name="mlp", params={"input_shape": [1, 8, 8], "num_classes": 4}), seed=1)
    with pytest.raises(TrainingFailed, match="no convolutions"):
        rate_channels(labelled(0, 3), mlp, 3, CPU)


def test_a_model_that_is_no_longer_finite_is_not_rated() -> None:
    model = build(CNN, seed=1)
    with torch.no_grad():
        next(module for module in model.modules() if isinstance(module, nn.Conv2d)).weight.fill_(torch.inf)
    with pytest.raises(TrainingFailed, match="not finite"):
        rate_channels(labelled(0, 3), model, 3, CPU)


def test_rating_stops_when_nobody_wants_it_any_more() -> None:
    with pytest.raises(TrainingStopped):
        rate_channels(labelled(0, 3), build(CNN, seed=1), 3, CPU, should_stop=lambda: True)


def pruned(folder: Path, scores: Any, ratio: float = 0.5, weight: float = 1.0) -> tuple[Any, dict[str, float]]:
    """Of a layer with these scores, followed by a layer of two weights that are no channels."""
    filters = np.ones((len(scores), 1, 2), np.float32)
    model = {"0.weight": filters, "1.weight": np.ones((2, 2), np.float32), "steps": np.array([7])}
    sent = {"0.weight": filters * np.array(scores, np.float32)[:, None, None], "1.weight": np.zeros((2, 2), np.float32)}
    for name, tensors in (("model", model), ("sent", sent)):
        codec.write_file(folder / name, tensors)
    params = {"model": "model", "scores": [{"digest": "sent", "weight": weight}], "ratio": ratio}
    figures = over_files(prune_channels, params, {"model": folder / "model", "sent": folder / "sent"}, folder / "out")
    from services.tensors.streams import StoredFile

    return codec.read(StoredFile(folder / "out")), figures


def test_the_most_telling_channels_go_and_not_the_least(tmp_path: Path) -> None:
    found, figures = pruned(tmp_path, [0.1, 0.9, -0.2, 0.4])
    assert found["0.weight"][:, 0, 0].tolist() == [1, 0, 1, 0]
    assert found["1.weight"].all() and found["steps"].tolist() == [7]
    assert figures == {"num_channels": 4.0, "num_pruned": 2.0}


def test_a_layer_keeps_its_last_channel(tmp_path: Path) -> None:
    found, _ = pruned(tmp_path, [0.9, 0.8], ratio=0.99)
    assert found["0.weight"][:, 0, 0].tolist() == [0, 1]


@pytest.mark.parametrize("scores", [[0.0, 0.0], [-1.0, -2.0]])
def test_where_no_channel_tells_the_class_apart_nothing_is_published(scores: list[float], tmp_path: Path) -> None:
    with pytest.raises(KernelFailed, match="no channel"):
        pruned(tmp_path, scores)


def test_scores_without_weight_have_no_mean(tmp_path: Path) -> None:
    with pytest.raises(KernelFailed, match="no mean"):
        pruned(tmp_path, [1.0, 0.5], weight=0.0)
