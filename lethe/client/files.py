"""Files that appear only when they are complete, so that one cut short is never taken for a certificate."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, content: bytes, *, is_private: bool = False) -> None:
    """Put the bytes at `path`. `is_private`: only its owner may read it, from its first byte on."""
    partial = path.with_name(path.name + ".part")
    partial.unlink(missing_ok=True)
    with os.fdopen(
        os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if is_private else 0o666), "wb"
    ) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
