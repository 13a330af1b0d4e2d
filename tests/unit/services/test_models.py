import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from services.core.errors import Rejected
from services.models.build import MODELS, build
from services.models.kernels import init_model
from services.models.spec import PARAMS, params_of, validate
from services.models.weights import load_weights, save_tensors
from services.tensors.streams import StoredFile
from services.wire.v1.runs import ModelSpec
from tests.support.kernels import over_files

SPECS = [
    ModelSpec(name="mlp", params={"input_shape": [8, 8], "num_classes": 10}),
    ModelSpec(name="mlp", params={"input_shape": [5], "num_classes": 2, "hidden": []}),
    ModelSpec(name="mlp", params={"input_shape": [1, 4, 4], "num_classes": 3, "hidden": [7, 6]}),
    ModelSpec(name="lenet5", params={"input_shape": [1, 28, 28], "num_classes": 10}),
    ModelSpec(name="lenet5", params={"input_shape": [3, 32, 17], "num_classes": 4}),
    ModelSpec(name="lenet5", params={"input_shape": [12, 12], "num_classes": 2}),
    ModelSpec(name="cnn", params={"input_shape": [1, 8, 8], "num_classes": 10}),
    ModelSpec(name="cnn", params={"input_shape": [3, 33, 6], "num_classes": 5}),
    ModelSpec(name="vgg16", params={"input_shape": [3, 32, 64], "num_classes": 10}),
    ModelSpec(name="resnet", params={"input_shape": [3, 16, 9], "num_classes": 10}),
]


def test_every_model_with_parameters_has_a_builder() -> None:
    assert PARAMS.keys() == MODELS.keys()
    language_models = {"gpt2", "gpt2_classifier"}  # in test_gpt2.py
    assert {spec.name for spec in SPECS} | language_models == MODELS.keys()


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_model_maps_a_batch_to_logits(spec: ModelSpec) -> None:
    params = params_of(spec)
    logits = build(spec, seed=0)(torch.zeros(3, *params.input_shape))
    assert logits.shape == (3, params.num_classes)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_parameters_are_counted_without_building(spec: ModelSpec) -> None:
    assert params_of(spec).num_parameters() == sum(parameter.numel() for parameter in build(spec, 0).parameters())


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_equal_seeds_give_equal_bytes_and_other_seeds_others(spec: ModelSpec, tmp_path: Path) -> None:
    for name, seed in (("one", 7), ("same", 7), ("other", 8)):
        torch.full((1_000_000,), float("nan"))  # memory that an uninitialised layer would pick up
        over_files(init_model, {"model": spec.model_dump(), "seed": seed}, {}, tmp_path / name)
    one, same, other = ((tmp_path / name).read_bytes() for name in ("one", "same", "other"))
    assert one == same != other


def test_deeper_resnets_are_counted_too() -> None:
    spec = ModelSpec(name="resnet", params={"input_shape": [1, 8, 8], "num_classes": 2, "depth": 34})
    with torch.device("meta"):
        model = MODELS["resnet"](params_of(spec))
    assert params_of(spec).num_parameters() == sum(parameter.numel() for parameter in model.parameters()) > 21e6


def test_building_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    build(SPECS[3], seed=1)
    assert torch.equal(before, torch.get_rng_state())


def test_models_built_in_threads_at_once_equal_those_built_alone() -> None:
    alone = [build(SPECS[3], seed).state_dict() for seed in range(4)]
    found: dict[int, Any] = {}

    def work(seed: int) -> None:
        found[seed] = build(SPECS[3], seed).state_dict()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(4):
        assert all(torch.equal(found[seed][name], tensor) for name, tensor in alone[seed].items())


def test_weights_are_drawn_within_the_bounds_of_torch() -> None:
    layer = torch.nn.Linear(64, 80)
    drawn = build(SPECS[0], seed=0).state_dict()["1.weight"]
    assert drawn.abs().max() <= 1 / 8
    assert drawn.std() == pytest.approx(layer.weight.std().item(), rel=0.1)


@pytest.mark.parametrize(
    ("name", "params", "hint"),
    [
        ("alexnet", {}, "mlp, lenet5, cnn, vgg16, resnet, gpt2"),
        ("resnet", {"input_shape": [32, 32], "num_classes": 10, "depth": 50}, "depth"),
        ("vgg16", {"input_shape": [28, 28], "num_classes": 10}, "at least 32"),
        ("mlp", {}, "input_shape"),
        ("mlp", {"input_shape": [8, 8], "num_classes": 10, "depth": 3}, "depth"),
        ("mlp", {"input_shape": [8, 8], "num_classes": "10"}, "num_classes"),
        ("mlp", {"input_shape": [8, 0], "num_classes": 10}, "input_shape"),
        ("mlp", {"input_shape": ["8"], "num_classes": 10}, "input_shape"),
        ("mlp", {"input_shape": "88", "num_classes": 10}, "input_shape"),
        ("mlp", {"input_shape": [8, 8], "num_classes": 10, "hidden": [65536, 65536]}, "limit"),
        ("lenet5", {"input_shape": [8, 8], "num_classes": 10}, "at least 12"),
        ("cnn", {"input_shape": [64], "num_classes": 10}, "channels"),
    ],
)
def test_model_that_cannot_be_built_is_rejected(name: str, params: dict[str, Any], hint: str) -> None:
    with pytest.raises(Rejected, match=hint) as caught:
        validate(ModelSpec(name=name, params=params))
    assert caught.value.code == "invalid-run"


def test_custom_model_is_valid_but_not_built_here() -> None:
    spec = ModelSpec(name="custom", params={"anything": 1})
    validate(spec)
    with pytest.raises(Rejected, match="own task"):
        build(spec, seed=0)


def test_validating_needs_no_torch() -> None:
    program = (
        "import sys; from services.models.spec import validate; from services.wire.v1.runs import ModelSpec;"
        "from services.tensors import aggregate, inspection, codec; from services.selection import policies;"
        "from services.training import task; from services.data import sources;"
        "validate(ModelSpec(name='mlp', params={'input_shape': [8, 8], 'num_classes': 10}));"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_weights_survive_a_file(tmp_path: Path) -> None:
    model = torch.nn.ModuleDict({"norm": torch.nn.BatchNorm1d(3), "linear": torch.nn.Linear(2, 2).to(torch.bfloat16)})
    other = torch.nn.ModuleDict({"norm": torch.nn.BatchNorm1d(3), "linear": torch.nn.Linear(2, 2).to(torch.bfloat16)})
    model["norm"](torch.randn(5, 3, generator=torch.Generator().manual_seed(0)))
    save_tensors(tmp_path / "weights", model.state_dict())
    load_weights(other, StoredFile(tmp_path / "weights"))
    assert other.state_dict()["norm.num_batches_tracked"] == 1
    assert all(torch.equal(other.state_dict()[name], tensor) for name, tensor in model.state_dict().items())


def test_weights_of_another_model_are_rejected_by_name(tmp_path: Path) -> None:
    save_tensors(tmp_path / "weights", build(SPECS[0], 0).state_dict())
    with pytest.raises(Rejected, match=r"1\.weight") as caught:
        load_weights(build(SPECS[2], 0), StoredFile(tmp_path / "weights"))
    assert caught.value.code == "wrong-layout"
