"""`lethe methods`: what this installation can train and forget with, and which packages that comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lethe.target import AsJson, examples

if TYPE_CHECKING:
    from services.methods.description import Description
    from services.methods.installed import LeftOut

HELP = examples("lethe methods", "lethe methods --json")


def methods(json: AsJson = False) -> None:
    """List the methods that are installed here, also those that other packages bring, and what was left out and why.

    Coordinators, compute processes and, where a method has work for clients, workers need the same packages.
    """
    from lethe.printing import print_records
    from services.methods.catalogue import LEFT_OUT, METHODS

    records = [*map(_record, METHODS.values()), *map(_left_out, LEFT_OUT)]
    columns = ["name", "family", "guarantee", "package", "version", *(["left_out"] if LEFT_OUT else [])]
    print_records(records, {column.replace("_", " "): column for column in columns}, as_json=json)


def _record(method: Description) -> dict[str, Any]:
    from services.methods.catalogue import package_of

    package = package_of(method.name)
    return {
        "name": method.name,
        "family": method.family,
        "guarantee": getattr(method, "guarantee", None),
        "package": package.name if package is not None else None,
        "version": package.version if package is not None else None,
        "left_out": None,
    }


def _left_out(one: LeftOut) -> dict[str, Any]:
    return {
        "name": one.name,
        "family": None,
        "guarantee": None,
        "package": one.package.name,
        "version": one.package.version,
        "left_out": one.reason,
    }
