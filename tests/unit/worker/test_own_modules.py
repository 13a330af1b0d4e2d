"""A data holder's modules may be called like ours: each side gets its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import services
import worker
from worker.own_modules import OwnModules
from worker.task_loading import TaskUnusable, load_task

MEMBERS = "model = train_batches = eval_batches = loss = score = lambda *_: None"
TASK = f"class Task:\n    {MEMBERS}\n    num_train = num_eval = "


@pytest.fixture(autouse=True)
def _python_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])
    monkeypatch.setattr(sys, "modules", sys.modules)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("lethe_own_", "lethe_task_", "clinic")):
            del sys.modules[name]
    OwnModules._of_folders.clear()


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("name", ["services", "worker", "coordinator", "migrations", "lethe"])
def test_a_task_file_imports_its_own_module_that_is_called_like_ours(tmp_path: Path, name: str) -> None:
    write(tmp_path, {f"{name}.py": "SIZE = 7\n", "clinic_task.py": f"import {name}\n{TASK}{name}.SIZE\n"})
    assert load_task(f"{tmp_path}/clinic_task.py:Task", None).num_train == 7
    assert sys.modules["services"] is services and sys.modules["worker"] is worker


def test_own_packages_import_each_other_in_every_way(tmp_path: Path) -> None:
    files = {
        "services/__init__.py": "from services.sizes import SMALL\nfrom . import sizes\nimport worker.deep.down\n",
        "services/sizes.py": "SMALL = 3\ndef late():\n    from services import sizes\n    return sizes.SMALL\n",
        "worker/deep/down.py": "import services.sizes\nDEPTH = services.sizes.SMALL\n",  # packages without __init__.py
        "clinic_helper.py": "import coordinator as ours_or_not\nfrom services.sizes import late\nVALUE = late()\n",
        "coordinator.py": "",
        "clinic_task.py": "import services.sizes as sizes, clinic_helper, worker.deep.down as down\n"
        f"{TASK}sizes.SMALL + clinic_helper.VALUE + down.DEPTH\n",
    }
    assert load_task(f"{write(tmp_path, files)}/clinic_task.py:Task", None).num_train == 9


def test_what_the_own_package_lacks_is_ours(tmp_path: Path) -> None:
    files = {
        "services.py": "SIZE = 5\n",
        "clinic_task.py": f"from services.training.task import ClientTask\nfrom services import SIZE\n{TASK}SIZE\n",
    }
    assert load_task(f"{write(tmp_path, files)}/clinic_task.py:Task", None).num_train == 5


def test_what_the_own_package_misses_itself_is_told(tmp_path: Path) -> None:
    files = {"services.py": "import no_such_module\n", "clinic_task.py": "import services\n"}
    with pytest.raises(TaskUnusable, match="no_such_module"):
        load_task(f"{write(tmp_path, files)}/clinic_task.py:Task", None)


def test_a_task_may_be_a_module_of_a_package_that_is_called_like_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        tmp_path,
        {"services/clinic.py": f"from services.sizes import SIZE\n{TASK}SIZE\n", "services/sizes.py": "SIZE = 4"},
    )
    monkeypatch.chdir(tmp_path)
    assert load_task("services.clinic:Task", None).num_train == 4
    monkeypatch.chdir("/")
    monkeypatch.syspath_prepend(str(write(tmp_path / "path", {"worker.py": f"{TASK}6\n"})))
    assert load_task("worker:Task", None).num_train == 6
    assert sys.modules["worker"] is worker


def test_two_folders_have_each_their_own(tmp_path: Path) -> None:
    for size in (1, 2):
        files = {"services.py": f"SIZE = {size}\n", f"clinic{size}.py": f"import services\n{TASK}services.SIZE\n"}
        write(tmp_path / str(size), files)
    sizes = [load_task(f"{tmp_path}/{size}/clinic{size}.py:Task", None).num_train for size in (1, 2)]
    assert sizes == [1, 2]


def test_a_folder_of_data_that_is_called_like_ours_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, {"services/scans.csv": "", "clinic_task.py": f"import services\n{TASK}len(services.__path__)\n"})
    assert load_task(f"{tmp_path}/clinic_task.py:Task", None).num_train == len(services.__path__)


@pytest.mark.parametrize("way", ["the working directory of python -m", "PYTHONPATH"])
def test_modules_of_others_never_stand_in_for_ours(tmp_path: Path, way: str) -> None:
    """`lethe models prepare` and the like import services first of all; broken ones here would end the command."""
    broken = dict.fromkeys(("services.py", "worker/__init__.py", "coordinator.py"), "raise SystemExit('not ours')\n")
    write(tmp_path, {**broken, "run.yaml": "nonsense: 1\n"})
    environment = {"PYTHONPATH": str(tmp_path)} if way == "PYTHONPATH" else {}
    script = [sys.executable, "-m", "lethe.cli"] if not environment else [str(Path(sys.executable).with_name("lethe"))]
    done = subprocess.run(
        [*script, "runs", "create", "run.yaml"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "run.yaml is not a run" in done.stderr
