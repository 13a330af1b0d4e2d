from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from services.audit.spec import Canary
from worker.task_loading import TaskUnusable, load_task


@pytest.mark.parametrize(
    ("task", "data", "complaint"),
    [
        ("builtin:painter", "builtin:digits", "no built-in task 'painter'"),
        ("builtin:classifier", None, "needs data"),
        ("builtin:classifier", "npz:nowhere.npz", "no file"),
        ("builtin:tabular-classifier", "builtin:digits", "takes samples of shape (features)"),
        ("nowhere.py:Task", None, "no file nowhere.py"),
        ("no.such.module:Task", None, "cannot be imported"),
        ("json:Task", None, "has no class Task"),
        ("Task", None, "write builtin:NAME"),
        ("collections:OrderedDict", None, "lacks model, num_train"),
    ],
)
def test_a_task_that_cannot_be_loaded_is_explained(task: str, data: str | None, complaint: str) -> None:
    with pytest.raises(TaskUnusable) as caught:
        load_task(task, data)
    assert complaint in str(caught.value)


def test_a_class_that_raises_is_explained(tmp_path: Path) -> None:
    (tmp_path / "broken_task.py").write_text(
        "class Task:\n    def __init__(self, data):\n        raise KeyError('fold')\n"
    )
    with pytest.raises(TaskUnusable, match="KeyError"):
        load_task(f"{tmp_path}/broken_task.py:Task", "x")


def test_a_file_that_cannot_be_imported_is_explained(tmp_path: Path) -> None:
    (tmp_path / "wrong_task.py").write_text("def (")
    with pytest.raises(TaskUnusable, match="SyntaxError"):
        load_task(f"{tmp_path}/wrong_task.py:Task", None)


def test_an_own_task_may_import_its_neighbours(tmp_path: Path) -> None:
    members = "model = train_batches = eval_batches = loss = score = lambda *_: None"
    (tmp_path / "neighbour_of_task.py").write_text("SIZE = 7\n")
    (tmp_path / "friendly_task.py").write_text(
        f"from neighbour_of_task import SIZE\nclass Task:\n    num_train = num_eval = SIZE\n    {members}\n"
    )
    assert load_task(f"{tmp_path}/friendly_task.py:Task", None).num_train == 7


def test_a_table_fits_the_tabular_classifier(tmp_path: Path) -> None:
    np.savez(tmp_path / "table.npz", x=np.ones((10, 3), np.float32), y=np.arange(10) % 2)
    assert load_task("builtin:tabular-classifier", f"npz:{tmp_path}/table.npz").num_train == 8


def test_a_canary_is_carried_by_built_in_tasks_only() -> None:
    canary = Canary(target_class=3, seed=7)
    plain, carrying = load_task("builtin:classifier", "digits"), load_task("builtin:classifier", "digits", (), canary)
    labels = [np.concatenate([y.numpy() for _, y in task.train_batches(64, 0)]) for task in (plain, carrying)]
    changed = labels[0] != labels[1]
    assert 0.15 < changed.mean() < 0.25 and set(labels[1][changed]) == {3}
    with pytest.raises(TaskUnusable, match="only built-in tasks"):
        load_task("my_task.py:Task", None, (), canary)
