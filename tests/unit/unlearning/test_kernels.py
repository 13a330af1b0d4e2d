"""What the kernels do with degenerate inputs: each has a defined outcome, and none of them is NaN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.methods.catalogue import KERNELS
from services.tensors import codec
from services.tensors.errors import KernelFailed
from services.tensors.streams import StoredFile
from services.unlearning.federaser.kernels import calibrate_update
from services.unlearning.fedrecovery.kernels import accumulate_residuals, remove_residuals
from services.unlearning.negation.kernels import negate_layers
from services.unlearning.pga.kernels import pga_reference
from services.unlearning.sifu.kernels import add_gaussian_noise, measure_distances
from tests.support.kernels import over_files, run_over_files

Tensors = dict[str, Any]
MLP = {"name": "mlp", "params": {"input_shape": [3], "num_classes": 2, "hidden": [4]}}


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


def store(folder: Path, **files: Tensors) -> dict[str, Path]:
    for name, tensors in files.items():
        codec.write_file(folder / name, tensors)
    return {name: folder / name for name in files}


def calibrated(folder: Path, new: Tensors, stored: Tensors, **options: Any) -> tuple[Tensors, dict[str, float]]:
    inputs = store(folder, model=new, new=new, stored=stored)
    params = {"model": "model", "update": "new", "stored": ["stored"]}
    figures = over_files(calibrate_update, params, inputs, folder / "out", **options)
    return codec.read(StoredFile(folder / "out")), figures


def test_a_layer_that_calibration_did_not_move_stays_unmoved_and_is_counted(tmp_path: Path) -> None:
    found, figures = calibrated(tmp_path, {"a": f32(0, 0), "b": f32(0, 2)}, {"a": f32(3, 4), "b": f32(1, 0)})
    assert found["a"].tolist() == [0, 0]
    assert found["b"].tolist() == [0, 1]
    assert figures["num_zero_norm"] == 1


def test_a_layer_that_the_stored_update_did_not_move_is_not_moved(tmp_path: Path) -> None:
    found, _ = calibrated(tmp_path, {"a": f32(3, 4)}, {"a": f32(0, 0)})
    assert found["a"].tolist() == [0, 0]


def test_batch_norms_statistics_are_averaged_and_never_calibrated(tmp_path: Path) -> None:
    new = {"bn.running_mean": f32(3, 4), "bn.weight": f32(3, 4)}
    found, _ = calibrated(tmp_path, new, {"bn.running_mean": f32(9, 9), "bn.weight": f32(0, 10)})
    assert found["bn.running_mean"].tolist() == [3, 4]
    assert found["bn.weight"].tolist() == [6, 8]


def test_the_slices_size_does_not_change_what_is_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    new, stored = ({"a": rng.standard_normal(100).astype(np.float32)} for _ in range(2))
    whole, _ = calibrated(tmp_path, new, stored)
    sliced, _ = calibrated(tmp_path, new, stored, slice_elements=7)
    assert whole["a"] == pytest.approx(sliced["a"], rel=1e-7)


def test_norms_that_overflow_fail_instead_of_giving_nan(tmp_path: Path) -> None:
    with pytest.raises(KernelFailed):
        calibrated(tmp_path, {"a": np.array([1e200])}, {"a": np.array([1e200])})


def test_updates_of_another_layout_are_refused(tmp_path: Path) -> None:
    inputs = store(tmp_path, model={"a": f32(1)}, new={"a": f32(1)}, other={"a": f32(1, 2)})
    with pytest.raises(KernelFailed, match="layout"):
        over_files(calibrate_update, {"model": "model", "update": "new", "stored": ["other"]}, inputs, tmp_path / "out")
    with pytest.raises(KernelFailed, match="no stored update"):
        over_files(calibrate_update, {"model": "model", "update": "new", "stored": []}, inputs, tmp_path / "out")


def test_a_leaver_that_was_the_whole_round_leaves_no_reference(tmp_path: Path) -> None:
    inputs = store(tmp_path, m={"a": f32(1)}, d={"a": f32(1)})
    params = {"head": "m", "base": "m", "scale": 1.0, "leavers": [{"digest": "d", "share": 1.0}]}
    with pytest.raises(KernelFailed, match="nothing is left"):
        over_files(pga_reference, params, inputs, tmp_path / "out")


def test_pgas_radius_is_positive_and_the_same_every_time(tmp_path: Path) -> None:
    run_over_files("init_model", {"model": MLP, "seed": 5}, {}, tmp_path / "w")
    params = {"model": MLP, "reference": "w", "seeds": [1, 2, 3]}
    radius = run_over_files("pga_radius", params, {"w": tmp_path / "w"}, tmp_path / "out")["radius"]
    assert 0 < radius == run_over_files("pga_radius", params, {"w": tmp_path / "w"}, tmp_path / "out")["radius"]
    itself = {"model": MLP, "reference": "w", "seeds": [5]}
    with pytest.raises(KernelFailed, match="radius"):
        run_over_files("pga_radius", itself, {"w": tmp_path / "w"}, tmp_path / "out")


def residuals(folder: Path, updates: list[dict[str, Any]], inputs: dict[str, Path]) -> dict[str, Path]:
    params = {"model": "head", "residuals": None, "updates": updates, "scale": 1.0}
    over_files(accumulate_residuals, params, inputs, folder / "r")
    return {**inputs, "r": folder / "r"}


def test_a_client_that_was_alone_in_a_round_takes_the_whole_step_with_it(tmp_path: Path) -> None:
    inputs = store(tmp_path, head={"w": f32(5, 5)}, d={"w": f32(3, 4)})
    inputs = residuals(tmp_path, [{"client": "a", "digest": "d", "weight": 2.0}], inputs)
    params = {"head": "head", "residuals": "r", "leavers": ["a"], "noise": 0.0, "seed": 0}
    figures = over_files(remove_residuals, params, inputs, tmp_path / "out")
    assert codec.read(StoredFile(tmp_path / "out"))["w"].tolist() == [2, 1]
    assert figures["removed_norm"] == pytest.approx(5)


def test_residuals_of_somebody_else_or_of_no_steps_at_all_are_refused(tmp_path: Path) -> None:
    inputs = store(tmp_path, head={"w": f32(5, 5)}, d={"w": f32(0, 0)})
    inputs = residuals(tmp_path, [{"client": "a", "digest": "d", "weight": 2.0}], inputs)
    params = {"head": "head", "residuals": "r", "noise": 0.0, "seed": 0}
    with pytest.raises(KernelFailed, match="no residuals of b"):
        over_files(remove_residuals, {**params, "leavers": ["b"]}, inputs, tmp_path / "out")
    with pytest.raises(KernelFailed, match="length zero"):
        over_files(remove_residuals, {**params, "leavers": ["a"]}, inputs, tmp_path / "out")


def test_noise_has_the_stated_size_and_depends_on_the_seed_only(tmp_path: Path) -> None:
    inputs = store(tmp_path, m={"w": np.zeros(20_000, np.float32), "n": np.array([3])})
    params = {"model": "m", "noise": 0.05, "seed": 1}
    over_files(add_gaussian_noise, params, inputs, tmp_path / "one")
    over_files(add_gaussian_noise, params, inputs, tmp_path / "sliced", slice_elements=333)
    over_files(add_gaussian_noise, {**params, "seed": 2}, inputs, tmp_path / "other")
    one, other = (codec.read(StoredFile(tmp_path / name)) for name in ("one", "other"))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "sliced").read_bytes()
    assert float(one["w"].std()) == pytest.approx(0.05, rel=0.03)
    assert abs(float(one["w"].mean())) < 0.002
    assert not np.array_equal(one["w"], other["w"])
    assert one["n"].tolist() == [3]


def test_negation_names_its_layer_or_is_told(tmp_path: Path) -> None:
    named = {"stem.weight": f32(1, 2).reshape(1, 2), "head.weight": f32(3, 4).reshape(1, 2), "n": np.array([1])}
    inputs = store(tmp_path, m=named, zero={"0.weight": np.zeros((2, 2), np.float32)})
    with pytest.raises(KernelFailed, match="name it"):
        over_files(negate_layers, {"model": "m", "layers": None}, inputs, tmp_path / "out")
    with pytest.raises(KernelFailed, match="'n'"):
        over_files(negate_layers, {"model": "m", "layers": ["n"]}, inputs, tmp_path / "out")
    with pytest.raises(KernelFailed, match="all zeros"):
        over_files(negate_layers, {"model": "zero", "layers": None}, inputs, tmp_path / "out")
    over_files(negate_layers, {"model": "m", "layers": ["stem.weight"]}, inputs, tmp_path / "out")
    assert codec.read(StoredFile(tmp_path / "out"))["stem.weight"].tolist() == [[-1, -2]]


@pytest.mark.parametrize("name", ["mlp", "lenet5", "cnn"])
def test_the_first_layer_of_every_built_in_model_is_the_one_that_sees_the_input(name: str, tmp_path: Path) -> None:
    spec = {"name": name, "params": {"input_shape": [1, 16, 16], "num_classes": 3}}
    run_over_files("init_model", {"model": spec, "seed": 0}, {}, tmp_path / "m")
    over_files(negate_layers, {"model": "m", "layers": None}, {"m": tmp_path / "m"}, tmp_path / "out")
    before, after = codec.read(StoredFile(tmp_path / "m")), codec.read(StoredFile(tmp_path / "out"))
    changed = [tensor for tensor in before if not np.array_equal(before[tensor], after[tensor])]
    assert changed == ["1.weight" if name == "mlp" else "0.weight"]
    assert np.array_equal(after[changed[0]], -before[changed[0]])


def test_distances_of_a_round_without_weight_are_refused(tmp_path: Path) -> None:
    inputs = store(tmp_path, m={"a": f32(1)}, d={"a": f32(1)})
    updates = [{"client": "a", "digest": "d", "weight": 0.0}]
    with pytest.raises(KernelFailed, match="no step"):
        over_files(measure_distances, {"model": "m", "updates": updates, "scale": 1.0}, inputs, tmp_path / "out")


def test_every_kernel_that_is_named_exists() -> None:
    from importlib import import_module

    for address in KERNELS.values():
        module, _, function = address.partition(":")
        assert callable(getattr(import_module(module), function)), address
