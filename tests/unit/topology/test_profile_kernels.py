from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.tensors import codec
from services.tensors.errors import KernelFailed
from services.tensors.streams import StoredFile
from services.topology import kernels, knot, newcomers
from services.topology.updates import Updates
from tests.support.kernels import over_files

RNG_SEED = 5


def write_round(
    folder: Path, deltas: dict[str, Any], seconds: dict[str, float]
) -> tuple[dict[str, Any], dict[str, Path]]:
    inputs = {"base": folder / "base"}
    codec.write_file(
        inputs["base"], {"w": np.zeros((4, 5), np.float32), "b": np.zeros(3, np.float32), "steps": np.arange(2)}
    )
    for name, delta in deltas.items():
        inputs[f"u-{name}"] = folder / name
        codec.write_file(inputs[f"u-{name}"], {"w": delta[:20].reshape(4, 5), "b": delta[20:]})
    listed = [
        {"client": name, "digest": f"u-{name}", "weight": 1 + index, "seconds": seconds[name]}
        for index, name in enumerate(deltas)
    ]
    params = {"base": "base", "updates": listed, "num_clusters": 2, "min_size": 2, "max_size": 3}
    return params, inputs


def opened(params: dict[str, Any], files: dict[str, Path], stack: ExitStack) -> Updates:
    inputs = {name: StoredFile(path) for name, path in files.items()}
    return Updates.open(inputs[params["base"]], [update["digest"] for update in params["updates"]], inputs, stack)


@pytest.fixture
def deltas() -> dict[str, Any]:
    """Two directions: a, b, c go one way, d and e the other."""
    rng = np.random.default_rng(RNG_SEED)
    one, other = rng.standard_normal((2, 23))
    return {
        name: (direction + 0.1 * rng.standard_normal(23)).astype(np.float32)
        for name, direction in zip("adbec", (one, other, one, other, one), strict=True)
    }


SECONDS = {"a": 1.0, "b": 1.5, "c": 1.2, "d": 9.0, "e": 10.0}


def test_a_newcomer_is_as_far_from_each_anchor_as_it_was_when_it_was_profiled(
    tmp_path: Path, deltas: dict[str, Any]
) -> None:
    params, inputs = write_round(tmp_path, deltas, SECONDS)
    figures = over_files(
        kernels.knot_profile, {**params, "anchors": "linear", "max_memberships": 1}, inputs, tmp_path / "out"
    )
    joining = {**params, "newcomer": {"digest": "u-e", "seconds": SECONDS["e"]}, "figures": figures}
    found = over_files(newcomers.knot_newcomer, joining, inputs, tmp_path / "out")
    anchors = knot.Anchors.from_figures(figures)
    (expected,) = anchors.distances([SECONDS["e"]], [figures["disparity:e"]]).tolist()
    assert [found[f"distance:{n}"] for n in range(2)] == pytest.approx(expected, rel=1e-9)
    assert found["distance:1"] < found["distance:0"]


def test_without_kept_updates_a_newcomer_pulls_neither_with_nor_against_the_others(
    tmp_path: Path, deltas: dict[str, Any]
) -> None:
    params, inputs = write_round(tmp_path, deltas, SECONDS)
    figures = over_files(
        kernels.knot_profile, {**params, "anchors": "linear", "max_memberships": 1}, inputs, tmp_path / "out"
    )
    joining = {**params, "updates": [], "newcomer": {"digest": "u-e", "seconds": 1.0}, "figures": figures}
    found = over_files(newcomers.knot_newcomer, joining, inputs, tmp_path / "out")
    (expected,) = knot.Anchors.from_figures(figures).distances([1.0], [0.5]).tolist()
    assert [found[f"distance:{n}"] for n in range(2)] == pytest.approx(expected)
    with pytest.raises(KernelFailed, match="time is negative"):
        over_files(
            newcomers.knot_newcomer,
            {**joining, "newcomer": {"digest": "u-e", "seconds": -1.0}},
            inputs,
            tmp_path / "out",
        )


def test_a_spectral_newcomer_is_nearest_to_those_that_go_its_way(tmp_path: Path, deltas: dict[str, Any]) -> None:
    params, inputs = write_round(tmp_path, deltas, SECONDS)
    figures = {f"cluster:{name}": float(name in "de") for name in "abcd"}
    listed = [update for update in params["updates"] if update["client"] != "e"]
    joining = {**params, "updates": listed, "newcomer": {"digest": "u-e", "seconds": 1.0}, "figures": figures}
    found = over_files(newcomers.spectral_newcomer, joining, inputs, tmp_path / "out")
    cosines = [knot.disparity(deltas["e"], deltas[name]) for name in "abc"]
    assert found["distance:0"] == pytest.approx(2 * sum(cosines) / 3)
    assert found["distance:1"] == pytest.approx(2 * knot.disparity(deltas["e"], deltas["d"]))
    nobody = over_files(newcomers.spectral_newcomer, {**joining, "updates": []}, inputs, tmp_path / "out")
    assert nobody == {"distance:0": 1.0, "distance:1": 1.0}


def test_knot_profile_measures_each_client_against_the_weighted_step(tmp_path: Path, deltas: dict[str, Any]) -> None:
    params, inputs = write_round(tmp_path, deltas, SECONDS)
    figures = over_files(
        kernels.knot_profile, {**params, "anchors": "linear", "max_memberships": 1}, inputs, tmp_path / "out"
    )
    weights = np.arange(1, 6)
    step = weights @ np.stack([delta.astype(np.float64) for delta in deltas.values()]) / weights.sum()
    for name, delta in deltas.items():
        assert figures[f"disparity:{name}"] == pytest.approx(knot.disparity(step, delta), rel=1e-12)
    assert (figures["time_min"], figures["time_max"]) == (1.0, 10.0)
    assert figures["anchor_time:1"] == 10.0
    clusters = {name: figures[f"cluster:{name}"] for name in "abcde"}
    assert clusters == {"a": 0.0, "b": 0.0, "c": 0.0, "d": 1.0, "e": 1.0}
    assert not (tmp_path / "out").exists()


def test_several_memberships_are_numbered(tmp_path: Path, deltas: dict[str, Any]) -> None:
    params, inputs = write_round(tmp_path, deltas, SECONDS)
    figures = over_files(
        kernels.knot_profile,
        {**params, "anchors": "linear", "max_memberships": 2, "min_size": 3, "max_size": 5},
        inputs,
        tmp_path / "out",
    )
    memberships = [name for name in figures if name.startswith("cluster:")]
    assert len(memberships) == 6
    assert all(f"cluster:{name}:0" in figures for name in "abcde")


def test_disparities_do_not_depend_on_the_slice_size(tmp_path: Path, deltas: dict[str, Any]) -> None:
    params, inputs = write_round(tmp_path, deltas, SECONDS)
    with ExitStack() as stack:
        updates = opened(params, inputs, stack)
        whole = kernels.measure_disparities(updates, [1.0] * 5)
        assert kernels.measure_disparities(updates, [1.0] * 5, slice_elements=3) == pytest.approx(whole, rel=1e-12)


def test_spectral_profile_finds_the_two_directions(tmp_path: Path, deltas: dict[str, Any]) -> None:
    params, inputs = write_round(tmp_path, deltas, SECONDS)
    figures = over_files(kernels.spectral_profile, {**params, "seed": 1}, inputs, tmp_path / "out")
    assert figures == {"cluster:a": 0.0, "cluster:b": 0.0, "cluster:c": 0.0, "cluster:d": 1.0, "cluster:e": 1.0}


@pytest.mark.parametrize("seed", range(5))
def test_spectral_clusters_are_held_to_their_bounds(tmp_path: Path, deltas: dict[str, Any], seed: int) -> None:
    deltas = {**deltas, "d": deltas["a"], "e": np.zeros(23, np.float32)}
    params, inputs = write_round(tmp_path, deltas, SECONDS)
    figures = over_files(kernels.spectral_profile, {**params, "seed": seed}, inputs, tmp_path / "out")
    assert sorted(list(figures.values()).count(n) for n in (0.0, 1.0)) == [2, 3]


def test_inner_products_do_not_depend_on_the_block_size(tmp_path: Path, deltas: dict[str, Any]) -> None:
    params, inputs = write_round(tmp_path, deltas, SECONDS)
    with ExitStack() as stack:
        updates = opened(params, inputs, stack)
        small, large = kernels.measure_products(updates, block_elements=10), kernels.measure_products(updates)
    assert np.allclose(small, large, rtol=1e-12)


def test_bfloat16_updates_are_read(tmp_path: Path) -> None:
    codec.write_file(tmp_path / "m", {"w": np.array([(0x3F80,), (0xC000,)], codec.BF16)})
    with ExitStack() as stack:
        updates = opened({"base": "m", "updates": [{"digest": "m"}]}, {"m": tmp_path / "m"}, stack)
        assert [updates.read(0, part).tolist() for part in updates.slices()] == [[1.0, -2.0]]


def test_an_update_of_another_model_is_refused(tmp_path: Path, deltas: dict[str, Any]) -> None:
    params, inputs = write_round(tmp_path, deltas, SECONDS)
    codec.write_file(inputs["u-a"], {"w": np.zeros(3, np.float32)})
    with pytest.raises(KernelFailed, match="layout"):
        over_files(kernels.spectral_profile, {**params, "seed": 1}, inputs, tmp_path / "out")


def test_an_update_that_is_not_finite_is_refused(tmp_path: Path, deltas: dict[str, Any]) -> None:
    deltas["b"][3] = np.nan
    params, inputs = write_round(tmp_path, deltas, SECONDS)
    with pytest.raises(KernelFailed, match="NaN"):
        over_files(
            kernels.knot_profile, {**params, "anchors": "linear", "max_memberships": 1}, inputs, tmp_path / "out"
        )


def test_weights_that_sum_to_nothing_are_refused(tmp_path: Path, deltas: dict[str, Any]) -> None:
    params, inputs = write_round(tmp_path, deltas, SECONDS)
    for update in params["updates"]:
        update["weight"] = 0
    with pytest.raises(KernelFailed, match="sum to 0"):
        over_files(
            kernels.knot_profile, {**params, "anchors": "linear", "max_memberships": 1}, inputs, tmp_path / "out"
        )
