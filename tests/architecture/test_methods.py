"""A method is known by its description alone: no room of the coordinator knows one by name, and what is told of methods
elsewhere is what their descriptions say."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest

from services.incentive.spec import Strategy
from services.methods.catalogue import BUILT_IN, CLIENT_WORK, KERNELS, METHODS, TRAINING, UNLEARNING
from services.methods.description import Description, Recovery, Selection
from services.methods.references import resolve

ROOT = Path(__file__).parents[2]
ROOMS = ("coordinator/engine", "coordinator/store")
ALSO_CALLED = {
    "reinit": {"coordinator/engine/entities/training.py", "coordinator/store/tables/models.py"},
    "clusters": {"coordinator/engine/families.py", "coordinator/engine/joining.py"},
}
"""A kind of checkpoint is called like the method that makes it, and a kind of topology like a selection policy."""
WORK_OF_RUNS = {"train", "evaluate", "profile", "audit"}
OURS: list[Description] = [resolve(place) for place in BUILT_IN]
PAGE = (ROOT / "docs" / "methods" / "README.md").read_text("utf-8")
PAGES_THAT_CHOOSE = ("recovery.md", "selection.md", "incentives.md")
METHOD_PAGES = sorted(page for page in (ROOT / "docs" / "methods").glob("*.md") if page.name != "recovery.md")


def literals(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


@pytest.mark.parametrize("room", ROOMS)
def test_no_name_of_a_method_of_its_kernels_or_its_tasks_stands_in_engine_or_store(room: str) -> None:
    of_methods = {kernel for method in OURS for kernel in method.kernels} | (CLIENT_WORK.keys() - WORK_OF_RUNS)
    names = {method.name for method in OURS} | of_methods
    for path in sorted((ROOT / room).rglob("*.py")):
        place = str(path.relative_to(ROOT))
        known = {name for name in literals(path) & names if place not in ALSO_CALLED.get(name, ())}
        assert not known, f"{place} knows {', '.join(sorted(known))}: what it needs to know belongs in the description"


@pytest.mark.parametrize("room", ROOMS)
def test_engine_and_store_import_no_method(room: str) -> None:
    folders = {place.rpartition(".description:")[0] for place in BUILT_IN}
    for path in sorted((ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                named = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
                assert not {name for name in named if any(f"{name}.".startswith(f"{f}.") for f in folders)}, path


def test_every_method_is_described_in_its_own_folder_and_keeps_its_code_there() -> None:
    for place, method in zip(BUILT_IN, OURS, strict=True):
        folder = place.partition(".description:")[0]
        assert import_module(folder).__doc__, "the paper, and what it does in a sentence"
        shared = {"services.training.rounds:RoundsProgram"}
        assert all(reference.startswith(f"{folder}.") for reference in set(method.references) - shared), method.name


def test_everything_that_a_description_refers_to_exists() -> None:
    for method in OURS:
        assert all(callable(resolve(reference)) for reference in method.references), method.name
    assert all(callable(resolve(place)) for place in KERNELS.values())


def test_every_folder_of_a_method_is_in_the_list() -> None:
    families = ("training", "selection", "unlearning", "recovery")
    folders = [folder for family in families for folder in (ROOT / "services" / family).glob("*/")]
    found = {f"services.{path.parent.name}.{path.name}" for path in folders if (path / "__init__.py").is_file()}
    assert found == {place.partition(".description:")[0] for place in BUILT_IN}


def rows(heading: str) -> list[list[str]]:
    """The cells of the table that begins with this line."""
    lines = PAGE[PAGE.index(heading) :].splitlines()[2:]
    table = lines[: next(i for i, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def name_in(cell: str) -> str:
    (name,) = re.findall(r"^\[?`([a-z_-]+)`", cell)
    return str(name)


def test_the_table_that_chooses_a_method_has_all_of_them_with_their_guarantees() -> None:
    told = {name_in(cell): guarantee for _, cell, guarantee in rows("| your situation |")}
    assert told == {m.name: m.guarantee for m in UNLEARNING.values() if m in OURS}


def test_the_table_of_needs_says_what_the_descriptions_say() -> None:
    told = {name_in(cell): (leaver, others, stored) for cell, leaver, others, stored, _ in rows("| | leaver online |")}
    assert told.keys() == {m.name for m in UNLEARNING.values() if m in OURS}
    for name, (leaver, others, stored) in told.items():
        method = UNLEARNING[name]
        assert leaver == ("yes" if method.needs_leaver else "no"), name
        assert (others != "no") == method.needs_remaining, name
        assert stored != "nothing" or not (method.needs_history or method.needs_residuals or method.needs_distances)


def test_the_run_file_lists_every_algorithm() -> None:
    page = (ROOT / "docs" / "run-file.md").read_text("utf-8")
    (row,) = re.findall(r"^\| `training.algorithm` \|(.+)$", page, re.MULTILINE)
    assert {name for name in METHODS if f"`{name}`" in row} == {name for name, m in TRAINING.items() if m in OURS}


def test_each_recovery_selection_and_allocation_is_in_the_page_that_chooses_among_them() -> None:
    pages = {name: (ROOT / "docs" / "methods" / name).read_text("utf-8") for name in PAGES_THAT_CHOOSE}
    known = {
        "recovery.md": {m.name for m in OURS if isinstance(m, Recovery)},
        "selection.md": {m.name for m in OURS if isinstance(m, Selection)},
        "incentives.md": set(get_args(Strategy)),
    }
    for name, methods in known.items():
        assert methods and {one for one in methods if f"`{one}`" not in pages[name]} == set(), name
    own = {method.name.replace("_", "-") for method in OURS if isinstance(method, Recovery)} - {"plain"}
    assert {name for name in own if f"]({name}.md)" not in pages["recovery.md"]} == set()
    assert "Accuracy on one class dropped after an erasure" in PAGE


@pytest.mark.parametrize("page", METHOD_PAGES, ids=lambda page: page.name)
def test_each_page_on_a_method_says_what_was_run_to_measure_it(page: Path) -> None:
    (section,) = re.findall(r"^## Measured$(.+?)(?=^## |\Z)", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert re.search(r"lethe bench \w+", section) or "No benchmark repeats this" in section
