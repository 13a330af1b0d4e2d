from __future__ import annotations

from typing import get_args

from services.methods.catalogue import CLIENT_WORK
from services.methods.references import resolve
from services.wire.v1.work import TaskKind


def test_every_kind_of_task_has_a_handler() -> None:
    assert all(callable(resolve(CLIENT_WORK[kind].handler)) for kind in get_args(TaskKind))
