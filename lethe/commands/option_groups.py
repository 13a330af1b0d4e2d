"""Options of a command as fields of a dataclass: two commands may share them, and a long list has a name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with an option for each field of its parameters that are dataclasses. typer reads signatures."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hints[name] for name in signature(command).parameters if is_dataclass(hints[name])}
    options: list[Parameter] = []
    for name, own in signature(command).parameters.items():
        if name in groups:
            types = get_type_hints(groups[name], include_extras=True)
            options += [_option(one.name, one.default, types[one.name]) for one in fields(groups[name])]
        else:
            options.append(_option(name, own.default, hints[name]))

    @wraps(command)
    def flat(**given: Any) -> None:
        made = {name: kind(**{one.name: given.pop(one.name) for one in fields(kind)}) for name, kind in groups.items()}
        command(**given, **made)

    flat.__signature__ = Signature(options)  # type: ignore[attr-defined]
    flat.__annotations__ = {one.name: one.annotation for one in options}
    return flat


def _option(name: str, default: Any, annotation: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
