"""Which entry points become methods, and what is said of the others. tests/e2e/test_own_method.py installs some."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.methods.installed import LeftOut, Package, find_installed, names_of

DESCRIPTION = """
from services.methods.description import Unlearning

METHOD = Unlearning(
    name={name!r}, summary="-", guarantee="approximate", program={program!r}, kernels={{{kernel!r}: {program!r}}}
)
"""
Plant = Callable[..., None]


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plant]:
    """Lays a package out as an installer would: a module, its metadata, one entry point."""
    monkeypatch.syspath_prepend(tmp_path)

    def lay(package: str, code: str = "", *, value: str | None = None, **names: str) -> None:
        given = {"name": package, "program": f"{package}_code:Program", "kernel": f"{package}_kernel"} | names
        (tmp_path / f"{package}_code.py").write_text(code or DESCRIPTION.format(**given))
        metadata = tmp_path / f"{package}-2.1.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 2.1\n")
        point = f"{package} = {value or f'{package}_code:METHOD'}"
        (metadata / "entry_points.txt").write_text(f"[lethe.methods]\n{point}\n")

    before = set(sys.modules)
    yield lay
    for module in set(sys.modules) - before:
        del sys.modules[module]


def left_out(*taken: str) -> dict[str, str]:
    found, left = find_installed(taken)
    assert not found and all(one.package.version == "2.1" for one in left)
    return {one.name: one.reason for one in left}


def test_a_description_of_another_package_is_found_with_its_version(plant: Plant) -> None:
    plant("own")
    [one], left = find_installed(())
    assert (one.description.name, one.package) == ("own", Package("own", "2.1")) and not left
    assert names_of(one.description) == {"method own", "kernel own_kernel"}


@pytest.mark.parametrize(
    ("code", "value", "reason"),
    [
        ("import nowhere_to_be_found", None, "No module named 'nowhere_to_be_found'"),
        ("1 / 0", None, "division by zero"),
        ("raise SystemExit", None, "SystemExit"),
        ("METHOD = 'own'", None, "own_code:METHOD is a str, not the description of a method"),
        ("METHOD = None", "own_code:OTHER", "has no attribute 'OTHER'"),
        ("", "nowhere_to_be_found:METHOD", "No module named 'nowhere_to_be_found'"),
        (DESCRIPTION.format(name="Own!", program="own_code:P", kernel="k"), None, "cannot be the name of a method"),
        (DESCRIPTION.format(name="own", program="own_code.plan:P", kernel="k"), None, "own_code"),
        (DESCRIPTION.format(name="own", program="not_there:P", kernel="k"), None, "No module named 'not_there'"),
    ],
)
def test_a_broken_one_is_left_out_and_named(plant: Plant, code: str, value: str | None, reason: str) -> None:
    plant("own", code, value=value)
    said = left_out()
    assert said.keys() == {"own"} and reason in said["own"]


@pytest.mark.parametrize("taken", ["method own", "kernel own_kernel"])
def test_a_name_that_is_taken_is_not_given_away(plant: Plant, taken: str) -> None:
    plant("own")
    assert left_out(taken) == {"own": f"there is another {taken}"}


def test_of_two_with_one_name_the_first_package_has_it(plant: Plant) -> None:
    plant("second", name="same")
    plant("first", name="same")
    found, left = find_installed(())
    assert [one.package.name for one in found] == ["first"]
    assert left == [LeftOut("second", Package("second", "2.1"), "there is another method same")]
