import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.tensors import codec, slices
from services.tensors.aggregate import weighted_step
from services.tensors.errors import KernelFailed
from services.tensors.streams import StoredFile
from tests.support.kernels import over_files

Tensors = dict[str, np.ndarray[Any, Any]]


def step(
    folder: Path,
    base: Tensors,
    updates: list[Tensors],
    weights: list[float],
    scale: float = 1.0,
    bounds: dict[str, Any] | None = None,
    factors: list[float | None] | None = None,
    **options: Any,
) -> tuple[Tensors, dict[str, float]]:
    inputs = {"base": folder / "base"}
    codec.write_file(folder / "base", base)
    for index, update in enumerate(updates):
        inputs[f"u{index}"] = folder / f"u{index}"
        codec.write_file(folder / f"u{index}", update)
    listed = [{"digest": f"u{index}", "weight": weight} for index, weight in enumerate(weights)]
    params = {"base": "base", "updates": listed, "scale": scale}
    if bounds is not None:
        params["bounds"] = bounds
    if factors is not None:
        params["updates"] = [{**one, "factor": factor} for one, factor in zip(listed, factors, strict=True)]
    metrics = over_files(weighted_step, params, inputs, folder / "out", **options)
    return codec.read(StoredFile(folder / "out")), metrics


def f32(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


def test_new_model_is_base_plus_the_weighted_mean(tmp_path: Path) -> None:
    new, metrics = step(tmp_path, {"w": f32(1, 2)}, [{"w": f32(4, 0)}, {"w": f32(0, 8)}], [1, 3])
    assert new["w"].tolist() == [2.0, 8.0]
    assert metrics["update_norm"] == pytest.approx(np.sqrt(1 + 36))


def test_scale_stretches_the_step(tmp_path: Path) -> None:
    new, _ = step(tmp_path, {"w": f32(1)}, [{"w": f32(2)}], [7], scale=0.5)
    assert new["w"].tolist() == [2.0]


def test_integer_tensors_are_copied_from_the_base(tmp_path: Path) -> None:
    base: Tensors = {"w": f32(1), "steps": np.array([3, 9], np.int64), "flag": np.array(True)}
    new, _ = step(tmp_path, base, [{"w": f32(1)}], [1], slice_elements=1)
    assert new["steps"].tolist() == [3, 9]
    assert bool(new["flag"])


def test_zero_updates_give_the_bytes_of_the_base(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    base: Tensors = {
        "w": rng.standard_normal((7, 5)).astype(np.float32),
        "h": rng.standard_normal(9).astype(np.float16),
    }
    step(tmp_path, base, [{name: np.zeros_like(array) for name, array in base.items()}] * 3, [1, 2, 3])
    assert (tmp_path / "out").read_bytes() == (tmp_path / "base").read_bytes()


def test_slice_size_does_not_change_the_bytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)

    def random() -> Tensors:
        return {"w": rng.standard_normal((13, 17)).astype(np.float32), "b": rng.standard_normal(5)}

    base, updates = random(), [random() for _ in range(4)]
    found = set()
    for slice_elements in (1, 7, 64, 1 << 16):
        step(tmp_path, base, updates, [0.1, 0.2, 0.3, 0.7], slice_elements=slice_elements)
        found.add((tmp_path / "out").read_bytes())
    assert len(found) == 1


def test_bfloat16_is_averaged_and_rounded_to_nearest_even(tmp_path: Path) -> None:
    def bf16(*values: float) -> np.ndarray[Any, Any]:
        return (np.array(values, np.float32).view(np.uint32) >> 16).astype(np.uint16).view(codec.BF16)

    new, _ = step(tmp_path, {"w": bf16(1, 256, 258)}, [{"w": bf16(2, 1, 1)}], [1])
    assert new["w"]["bits"].tolist() == bf16(3, 256, 260)["bits"].tolist()  # 257 and 259 lie between two bfloat16


def test_same_digest_listed_twice_counts_twice(tmp_path: Path) -> None:
    codec.write_file(tmp_path / "base", {"w": f32(0)})
    codec.write_file(tmp_path / "u", {"w": f32(3)})
    params = {"base": "b", "updates": [{"digest": "u", "weight": 1.0}, {"digest": "u", "weight": 2.0}], "scale": 1.0}
    over_files(weighted_step, params, {"b": tmp_path / "base", "u": tmp_path / "u"}, tmp_path / "out")
    assert codec.read(StoredFile(tmp_path / "out"))["w"].tolist() == [3.0]


def test_more_inputs_than_files_kept_open_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, updates = {"w": f32(1, 2, 3)}, [{"w": f32(i, 1, -i)} for i in range(6)]
    step(tmp_path, base, updates, [1.0] * 6)
    expected = (tmp_path / "out").read_bytes()
    monkeypatch.setattr(slices, "MAX_OPEN_FILES", 2)
    num_open = len(list(Path("/proc/self/fd").iterdir()))
    step(tmp_path, base, updates, [1.0] * 6)
    assert (tmp_path / "out").read_bytes() == expected
    assert len(list(Path("/proc/self/fd").iterdir())) == num_open


@pytest.mark.parametrize("weights", [[], [0.0], [1.0, -1.0], [float("nan")], [float("inf")], [1e308, 1e308]])
def test_weights_without_a_usable_sum_are_refused(tmp_path: Path, weights: list[float]) -> None:
    with pytest.raises(KernelFailed, match="nothing can be averaged"):
        step(tmp_path, {"w": f32(1)}, [{"w": f32(1)}] * len(weights), weights)


@pytest.mark.parametrize(
    ("base", "update"),
    [
        ({"w": f32(1)}, {"w": f32(np.inf)}),
        ({"w": f32(3e38)}, {"w": f32(3e38)}),
        ({"w": np.array([60000], np.float16)}, {"w": np.array([60000], np.float16)}),
        (
            {"w": np.array([0x7F00], np.uint16).view(codec.BF16)},
            {"w": np.array([0x7FFF], np.uint16).view(codec.BF16)},
        ),
    ],
)
def test_result_that_is_not_finite_is_refused(tmp_path: Path, base: Tensors, update: Tensors) -> None:
    with pytest.raises(KernelFailed, match="NaN or Inf"):
        step(tmp_path, base, [update], [1.0])


@pytest.mark.parametrize(
    "update",
    [{}, {"w": f32(1)}, {"w": np.zeros(2)}, {"v": f32(1, 1)}, {"w": f32(1, 1), "n": np.zeros(1, np.int64)}],
)
def test_update_of_another_layout_is_refused(tmp_path: Path, update: Tensors) -> None:
    with pytest.raises(KernelFailed, match="layout"):
        step(tmp_path, {"w": f32(1, 2), "n": np.zeros(1, np.int64)}, [update], [1.0])


def test_memory_stays_flat_for_many_large_inputs(tmp_path: Path) -> None:
    num_bytes = 64 * 2**20
    for name in ("base", "u0", "u1"):
        codec.write_file(tmp_path / name, {"w": np.zeros(num_bytes // 4, np.float32)})
    program = """
import resource, sys
from pathlib import Path
from services.tensors.aggregate import weighted_step
from services.tensors.streams import FileWriter, StoredFile
folder = Path(sys.argv[1])
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
updates = [{"digest": f"u{i % 2}", "weight": 1.0} for i in range(8)]
inputs = {name: StoredFile(folder / name) for name in ("base", "u0", "u1")}
with FileWriter(folder / "out") as out:
    weighted_step({"base": "base", "updates": updates, "scale": 1.0}, inputs, out)
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 32


def bounded(max_norm: float | None = None, large_updates: str = "refuse") -> dict[str, Any]:
    return {"max_norm": max_norm, "large_updates": large_updates}


def test_an_update_above_the_norm_is_left_out(tmp_path: Path) -> None:
    updates: list[Tensors] = [{"w": f32(3, 4)}, {"w": f32(30, 40)}, {"w": f32(0, 2)}]
    new, metrics = step(tmp_path, {"w": f32(0, 0)}, updates, [1, 5, 3], bounds=bounded(5.0))
    assert new["w"].tolist() == [0.75, 2.5]
    assert "left_out:1" in metrics and not {"left_out:0", "left_out:2"} & metrics.keys()


def test_an_update_above_the_norm_is_scaled_down_to_it_and_keeps_its_weight(tmp_path: Path) -> None:
    updates: list[Tensors] = [{"w": f32(3, 4)}, {"w": f32(30, 40)}]
    new, metrics = step(tmp_path, {"w": f32(0, 0)}, updates, [1, 3], bounds=bounded(5.0, "clip"), slice_elements=1)
    assert new["w"].tolist() == [3.0, 4.0]
    assert {name: value for name, value in metrics.items() if ":" in name} == {"factor:1": 0.1}


def test_a_recorded_factor_gives_the_same_bytes_as_the_clipping_did(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    updates: list[Tensors] = [{"w": rng.standard_normal(99).astype(np.float32) * scale} for scale in (1, 1e6, 3)]
    _, metrics = step(tmp_path, {"w": np.zeros(99, np.float32)}, updates, [1, 2, 3], bounds=bounded(1.7, "clip"))
    made = (tmp_path / "out").read_bytes()
    factors = [metrics.get(f"factor:{place}") for place in range(3)]
    step(tmp_path, {"w": np.zeros(99, np.float32)}, updates, [1, 2, 3], factors=factors)
    assert None not in factors and (tmp_path / "out").read_bytes() == made


@pytest.mark.parametrize(("dtype", "largest"), [(np.float16, 6e4), (np.float32, 3.4e38), (np.float64, 1.7e308)])
def test_updates_that_overflow_are_left_out_and_the_others_are_added(
    tmp_path: Path, dtype: type, largest: float
) -> None:
    base: Tensors = {"w": np.array([largest, 1.0], dtype)}
    hostile: Tensors = {"w": np.array([largest, largest], dtype)}
    honest: Tensors = {"w": np.array([0.0, 2.0], dtype)}
    new, metrics = step(tmp_path, base, [hostile, honest, hostile], [1, 1, 1], bounds=bounded())
    assert new["w"].tolist() == np.array([largest, 3.0], dtype).tolist()
    assert [name for name in metrics if ":" in name] == ["left_out:0", "left_out:2"]


def test_a_step_without_any_update_within_its_bounds_gives_the_bytes_of_the_base(tmp_path: Path) -> None:
    step(tmp_path, {"w": f32(1, 2)}, [{"w": f32(9, 9)}], [1], bounds=bounded(1.0))
    assert (tmp_path / "out").read_bytes() == (tmp_path / "base").read_bytes()


def test_without_bounds_a_step_that_overflows_fails(tmp_path: Path) -> None:
    with pytest.raises(KernelFailed, match="NaN or Inf"):
        step(tmp_path, {"w": f32(3e38)}, [{"w": f32(3e38)}], [1])
