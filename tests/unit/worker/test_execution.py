from __future__ import annotations

from typing import get_args

from services.wire.v1.work import TaskKind
from worker.execution import HANDLERS


def test_every_kind_of_task_has_a_handler() -> None:
    assert HANDLERS.keys() == set(get_args(TaskKind))
