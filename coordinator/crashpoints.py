"""Named places where a test can have the process die as if the power had gone.

`LETHE_CRASH_AT=name` kills this process with SIGKILL at the first passage of that point, `name:3` at the third. With
`LETHE_CRASH_ONCE_FILE=path` it happens only while that file does not exist; the file is created first, so that the
restarted process passes.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Final

_ARMED: Final = os.environ.get("LETHE_CRASH_AT")
_passages: Counter[str] = Counter()


def crashpoint(name: str) -> None:
    if _ARMED is None:
        return
    wanted, _, passage = _ARMED.partition(":")
    if wanted != name:
        return
    _passages[name] += 1
    if _passages[name] != int(passage or 1):
        return
    if once_file := os.environ.get("LETHE_CRASH_ONCE_FILE"):
        try:
            os.close(os.open(once_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return
    os.kill(os.getpid(), signal.SIGKILL)
