"""`lethe models init`: the first weights of a task of one's own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from services.tensors import codec
from services.tensors.streams import StoredFile
from tests.support.documents import EXAMPLES


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_first_weights_of_a_task_are_drawn_from_the_seed_of_its_run(lethe: Any, directory: Path) -> None:
    given = ("models", "init", "own-model.yaml", "--task", "own_task.py:Prices", "--data", "0")
    assert lethe(*given)[0] == lethe(*given, "--out", "again.safetensors")[0] == 0
    first = (directory / "init.safetensors").read_bytes()
    assert first == (directory / "again.safetensors").read_bytes()
    layout = codec.layout_of(StoredFile(directory / "init.safetensors"))
    assert {info.name: info.shape for info in layout.tensors}["0.weight"] == (16, 3)  # params.width of the run file
    (directory / "other.yaml").write_text((directory / "own-model.yaml").read_text() + "seed: 1\n")
    assert lethe("models", "init", "other.yaml", *given[3:])[0] == 0
    assert first != (directory / "init.safetensors").read_bytes()


def test_weights_can_be_drawn_without_a_run_file(lethe: Any, directory: Path) -> None:
    code, out, _ = lethe("models", "init", "--task", "own_task.py:Prices", "--data", "0", "--json")
    assert code == 0 and '"num_parameters": 81' in out and (directory / "init.safetensors").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("digits.yaml", "--task", "own_task.py:Prices", "--data", "0"), "model mlp is built in"),
        (("--task", "own_task.py:Prizes", "--data", "0"), "has no class Prizes"),
        (("--task", "own_task.py:Prices", "--data", "many"), "raised ValueError"),
        (("--task", "builtin:classifier", "--data", "digits"), "custom"),
        (("broken.yaml", "--task", "own_task.py:Prices", "--data", "0"), "its model() raised"),
    ],
)
def test_what_cannot_be_drawn_says_why(lethe: Any, directory: Path, arguments: tuple[str, ...], said: str) -> None:
    broken = (directory / "own-model.yaml").read_text().replace("width: 16", "width: wide")
    (directory / "broken.yaml").write_text(broken)
    code, _, err = lethe("models", "init", *arguments)
    assert code == 2 and said in err
    assert not (directory / "init.safetensors").exists()
