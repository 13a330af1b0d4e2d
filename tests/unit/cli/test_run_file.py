from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lethe import run_file
from lethe.failures import CommandFailed
from lethe.run_file import RunFileUnusable
from services.tensors import codec
from services.tensors.streams import StoredFile

DIGITS = "name: digits\nmodel: {name: mlp, params: {input_shape: [8, 8], num_classes: 10}}\n"


def read(tmp_path: Path, text: str) -> dict[str, Any]:
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return run_file.read(path)


def fault(tmp_path: Path, text: str) -> str:
    with pytest.raises(RunFileUnusable) as caught:
        read(tmp_path, text)
    assert caught.value.exit_code == 2
    return caught.value.message


class Uploads:
    """Keeps what was uploaded."""

    def __init__(self) -> None:
        self.tensors: list[dict[str, Any]] = []

    def __call__(self, path: Path) -> str:
        self.tensors.append(codec.read(StoredFile(path)))
        return "sha256:" + "1" * 64


def test_a_file_may_be_yaml_or_json(tmp_path: Path) -> None:
    as_json = '{"name": "digits", "model": {"name": "mlp", "params": {"input_shape": [8, 8], "num_classes": 10}}}'
    assert read(tmp_path, DIGITS) == read(tmp_path, as_json)


def test_an_unknown_key_is_named_with_the_one_that_was_meant(tmp_path: Path) -> None:
    assert "local.learning_rat: unknown key, did you mean learning_rate?" in fault(
        tmp_path, DIGITS + "local: {learning_rat: 0.1}"
    )


def test_an_unknown_key_of_an_algorithm_lists_the_keys_of_that_algorithm(tmp_path: Path) -> None:
    message = fault(tmp_path, DIGITS + "training: {algorithm: fedavg, buffer_size: 3}")
    assert "training.buffer_size: unknown key" in message
    assert "quorum" in message and "staleness" not in message


def test_a_wrong_value_is_shown_with_what_is_allowed(tmp_path: Path) -> None:
    message = fault(tmp_path, DIGITS + "selection: best\nlocal: {epochs: many}")
    assert "selection: found 'best'; input should be 'uniform' or 'round_robin'" in message
    assert "local.epochs: found 'many'; input should be a valid integer" in message


def test_an_unknown_algorithm_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    message = fault(tmp_path, DIGITS + "training: {algorithm: fedfoo}")
    assert "fedfoo" in message and "'fedavg', 'fedbuff'" in message


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    assert "model: missing" in fault(tmp_path, "name: digits")


def test_parts_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    assert "stop.accuracy needs validation.data" in fault(tmp_path, DIGITS + "stop: {accuracy: 0.9}")


def test_a_model_that_no_worker_could_build_is_refused(tmp_path: Path) -> None:
    assert "known are mlp, lenet5, cnn, vgg16, resnet, gpt2, gpt2_classifier, custom" in fault(
        tmp_path, "name: digits\nmodel: {name: transformer}"
    )


@pytest.mark.parametrize("text", ["just text", "- a list", "", "a: [unclosed"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    assert "is not a run" in fault(tmp_path, text)


def test_a_built_in_validation_set_is_uploaded_and_replaced_by_its_digest(tmp_path: Path) -> None:
    uploads = Uploads()
    spec = run_file.resolve(read(tmp_path, DIGITS + "validation: {data: 'builtin:digits', every: 2}"), uploads)
    assert spec["validation"] == {"data": "sha256:" + "1" * 64, "every": 2}
    (tensors,) = uploads.tensors
    assert tensors["x"].shape == (360, 1, 8, 8) and tensors["x"].dtype == np.float32
    assert tensors["y"].shape == (360,) and tensors["y"].dtype == np.int64


def test_all_rows_of_a_file_of_test_data_are_used(tmp_path: Path) -> None:
    np.savez(tmp_path / "test.npz", x=np.ones((10, 4), np.float32), y=np.zeros(10, np.int64))
    uploads = Uploads()
    run_file.resolve({"validation": {"data": f"npz:{tmp_path / 'test.npz'}"}}, uploads)
    assert len(uploads.tensors[0]["y"]) == 10


def test_only_the_test_part_of_a_divided_file_is_used(tmp_path: Path) -> None:
    arrays = {
        "x_train": np.ones((10, 4)),
        "y_train": np.zeros(10, int),
        "x_test": np.ones((3, 4)),
        "y_test": np.ones(3, int),
    }
    np.savez(tmp_path / "all.npz", **arrays)  # type: ignore[arg-type]
    uploads = Uploads()
    run_file.resolve({"validation": {"data": f"npz:{tmp_path / 'all.npz'}"}}, uploads)
    assert uploads.tensors[0]["y"].tolist() == [1, 1, 1]


def test_initial_weights_are_uploaded(tmp_path: Path) -> None:
    codec.write_file(tmp_path / "init.safetensors", {"w": np.ones(3, np.float32)})
    uploads = Uploads()
    assert run_file.resolve({"init": str(tmp_path / "init.safetensors")}, uploads)["init"] == "sha256:" + "1" * 64


def test_a_digest_is_left_as_it_is(tmp_path: Path) -> None:
    text = DIGITS + f"init: 'sha256:{'2' * 64}'"
    assert run_file.resolve(read(tmp_path, text), Uploads())["init"] == "sha256:" + "2" * 64


@pytest.mark.parametrize("spec", [{"init": "nowhere.safetensors"}, {"validation": {"data": "npz:nowhere.npz"}}])
def test_a_reference_to_nothing_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(CommandFailed, match="no file nowhere") as caught:
        run_file.resolve(spec, Uploads())
    assert caught.value.exit_code == 2
