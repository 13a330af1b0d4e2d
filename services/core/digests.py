"""Content addresses: `sha256:` and 64 hex digits."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

PATTERN = r"^sha256:[0-9a-f]{64}$"
_PATTERN = re.compile(PATTERN)


def is_digest(text: str) -> bool:
    return _PATTERN.fullmatch(text) is not None


def mentioned_in(value: Any) -> set[str]:
    """The digests anywhere in a JSON value."""
    if isinstance(value, str):
        return {value} if is_digest(value) else set()
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return set[str]().union(*map(mentioned_in, inside))


def of_bytes(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def of_json(value: Any) -> str:
    """Digest of the canonical JSON form (sorted keys, no spaces)."""
    return of_bytes(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())
