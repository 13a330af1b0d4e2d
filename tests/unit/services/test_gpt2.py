"""GPT-2, whole and with adapters; what needs no transformers is tested with a tiny stand-in."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from services.core.errors import Rejected
from services.data.sources import Dataset, load
from services.models.build import build
from services.models.gpt2 import Gpt2
from services.models.pretrained import load_pretrained
from services.models.spec import params_of, validate
from services.models.weights import load_weights, save_tensors
from services.tensors.streams import StoredFile
from services.training.evaluation import evaluate
from services.training.local import delta, snapshot, train
from services.training.local_spec import LocalTraining
from services.training.task import Classifier
from services.wire.v1.runs import ModelSpec

CPU = torch.device("cpu")
SMALL = {"input_shape": [16], "width": 16, "num_layers": 2, "num_heads": 2}
LANGUAGE = ModelSpec(name="gpt2", params={**SMALL, "num_classes": 257})
CLASSES = ModelSpec(name="gpt2_classifier", params={**SMALL, "num_classes": 2})
ADAPTERS = ModelSpec(name="gpt2_classifier", params={**SMALL, "num_classes": 2, "lora_rank": 3})


class Body(nn.Module):
    """Stands in for transformers' GPT2Model: embeds, and mixes nothing."""

    def __init__(self, vocabulary: int = 5, width: int = 4) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.lora_A = nn.Linear(width, width, bias=False)

    def forward(self, input_ids: torch.Tensor) -> Any:
        return SimpleNamespace(last_hidden_state=self.lora_A(self.wte(input_ids)))


def make(head: int | None, *, adapters_only: bool = False) -> Gpt2:
    model = Gpt2(Body(), nn.Linear(4, head, bias=False) if head else None, padding=4, adapters_only=adapters_only)
    model.initialise(torch.Generator().manual_seed(0))
    return model


def test_a_classifier_reads_its_last_token_before_the_padding() -> None:
    model = make(head=3)
    tokens = torch.tensor([[0, 1, 2, 4, 4], [3, 3, 3, 3, 2], [2, 4, 4, 4, 4]])
    logits = model(tokens.float())
    assert logits.shape == (3, 3)
    assert torch.equal(logits[0], logits[1]) and torch.equal(logits[0], logits[2])
    assert not torch.equal(logits[0], model(torch.tensor([[0, 1, 4, 4, 4]]))[0])


def test_a_language_model_is_judged_on_the_next_token_of_every_position() -> None:
    x, y = np.array([[0, 1, 2], [3, 2, 1]], dtype=np.float32), np.array([3, 0])
    task = Classifier(Dataset(x, y, x, y))
    model = make(head=None)
    batch = next(iter(task.eval_batches(2)))
    logits, right = task.predict(model, batch)
    assert logits.shape == (6, 5)
    assert right.tolist() == [1, 2, 3, 2, 1, 0]
    assert evaluate(task, model, CPU)["num_samples"] == 6


def test_with_adapters_the_rest_neither_travels_nor_moves(tmp_path: Path) -> None:
    model = make(head=3, adapters_only=True)
    assert set(model.state_dict()) == {"transformer.lora_A.weight", "score.weight"}
    frozen = model.get_parameter("transformer.wte.weight").detach().clone()
    x, y = np.array([[0, 1], [2, 3]], dtype=np.float32), np.array([0, 1])
    base = snapshot(model)
    train(Classifier(Dataset(x, y, x, y)), model, LocalTraining(learning_rate=1.0), 0, CPU)
    update = delta(base, model.state_dict())
    assert update.keys() == base.keys() and all(tensor.any() for tensor in update.values())
    assert torch.equal(model.get_parameter("transformer.wte.weight"), frozen)
    save_tensors(tmp_path / "weights", model.state_dict())
    other = make(head=3, adapters_only=True)
    load_weights(other, StoredFile(tmp_path / "weights"))
    assert all(torch.equal(other.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    model.load_state_dict(base)
    assert torch.equal(model.state_dict()["score.weight"], base["score.weight"])


def test_what_is_frozen_does_not_depend_on_the_seed() -> None:
    one, other = make(head=3, adapters_only=True), make(head=3, adapters_only=True)
    other.initialise(torch.Generator().manual_seed(1))
    assert torch.equal(one.get_parameter("transformer.wte.weight"), other.get_parameter("transformer.wte.weight"))
    assert not torch.equal(one.get_parameter("score.weight"), other.get_parameter("score.weight"))


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_pretrained_weights_replace_the_body_and_leave_the_head(tmp_path: Path, prefix: str) -> None:
    model = make(head=3)
    head = model.get_parameter("score.weight").detach().clone()
    tensors = {"wte.weight": torch.full((5, 4), 0.5), "lora_A.weight": torch.ones(4, 4)}
    save_tensors(
        tmp_path / "gpt2.safetensors",
        {**{prefix + name: tensor.half() for name, tensor in tensors.items()}, "lm_head.weight": torch.zeros(5, 4)},
    )
    load_pretrained(model, tmp_path / "gpt2.safetensors")
    assert torch.equal(model.get_parameter("transformer.wte.weight"), tensors["wte.weight"])
    assert torch.equal(model.get_parameter("score.weight"), head)


def test_pretrained_weights_of_another_size_are_refused_by_name(tmp_path: Path) -> None:
    save_tensors(tmp_path / "gpt2.safetensors", {"wte.weight": torch.ones(6, 4)})
    with pytest.raises(Rejected, match=r"transformer\.wte\.weight \[5, 4\]"):
        load_pretrained(make(head=3), tmp_path / "gpt2.safetensors")


@pytest.mark.parametrize(
    ("params", "hint"),
    [
        ({"num_heads": 3}, "multiple of num_heads"),
        ({"input_shape": [4, 4]}, "tokens per sample"),
        ({"pretrained": "gpt2.safetensors"}, "lora_rank"),
        ({"pretrained": "../gpt2.safetensors", "lora_rank": 2}, "pretrained"),
    ],
)
def test_a_language_model_that_cannot_be_built_is_rejected(params: dict[str, Any], hint: str) -> None:
    with pytest.raises(Rejected, match=hint):
        validate(ModelSpec(name="gpt2", params={**SMALL, "num_classes": 257, **params}))


def test_without_transformers_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(Rejected, match="extra `language`"):
        build(LANGUAGE, seed=0)


@pytest.fixture
def text(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "play.txt").write_text("to be or not to be, that is the question. " * 20)
    yield f"text:{tmp_path}/play.txt?length=16"


@pytest.mark.parametrize("spec", [LANGUAGE, CLASSES, ADAPTERS], ids=lambda s: s.name)
def test_models_are_counted_seeded_and_built_anew_with_the_same_bits(spec: ModelSpec) -> None:
    one, same, other = build(spec, 7), build(spec, 7), build(spec, 8)
    assert params_of(spec).num_parameters() == sum(param.numel() for param in one.parameters())
    assert all(torch.equal(same.state_dict()[name], tensor) for name, tensor in one.state_dict().items())
    assert any(not torch.equal(other.state_dict()[name], tensor) for name, tensor in one.state_dict().items())


def test_a_language_model_learns_a_text(text: str) -> None:
    task = Classifier(load(text))
    model = task.model(LANGUAGE)
    before = evaluate(task, model, CPU)
    assert before["loss"] == pytest.approx(math.log(257), rel=0.05)
    train(task, model, LocalTraining(optimizer="adamw", learning_rate=0.01, epochs=20, batch_size=8), 0, CPU)
    assert evaluate(task, model, CPU)["loss"] < before["loss"] / 2


def test_weights_that_transformers_wrote_are_loaded(tmp_path: Path) -> None:
    import importlib

    transformers: Any = importlib.import_module("transformers")
    config = transformers.GPT2Config(vocab_size=257, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    model = build(LANGUAGE, seed=0)
    load_pretrained(model, tmp_path / "model.safetensors")
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    tokens = torch.arange(16)[None]
    assert torch.allclose(model.eval()(tokens), theirs(tokens).logits, atol=1e-5)


def test_only_adapters_and_the_head_travel() -> None:
    names = set(build(ADAPTERS, seed=0).state_dict())
    assert "score.weight" in names
    assert len(names) == 1 + 2 * 2
    assert all("lora_" in name for name in names - {"score.weight"})
