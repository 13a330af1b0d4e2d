"""Code that is named, and imported when it is first used: a worker needs no code of the server, and a process that only
coordinates never imports torch."""

from __future__ import annotations

from importlib import import_module
from typing import Any

Reference = str
"""`module:name`."""


def resolve(reference: Reference) -> Any:
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def is_reference(text: object) -> bool:
    if not isinstance(text, str):
        return False
    module, _, name = text.partition(":")
    return name.isidentifier() and all(part.isidentifier() for part in module.split("."))
