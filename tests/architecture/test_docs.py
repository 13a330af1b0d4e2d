"""The documents agree with the code: links, names, error codes, settings, keys of run files, a README in each room."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from services.core.errors import CODES
from services.wire.v1.runs import RunSpec
from tests.support.documents import PAGES, ROOT

ROOMS = (
    "services",
    "coordinator/api",
    "coordinator/runtime",
    "coordinator/store",
    "coordinator/engine",
    "coordinator/blobs",
    "coordinator/bus",
    "worker",
    "lethe",
    "migrations",
    "openapi",
    "deploy",
    "benchmarks",
    "examples",
    "docs",
    "tests",
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def without_code(text: str) -> str:
    return FENCE.sub("", text)


def anchors(page: Path) -> set[str]:
    """GitHub's anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", without_code(page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    for link in LINK.findall(without_code(page.read_text("utf-8"))):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}"


@cache
def names_in(path: Path) -> set[str]:
    """Functions, classes, `Class.method` and constants that a module defines."""
    found = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.ClassDef):
            methods = (one for one in node.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)))
            found |= {f"{node.name}.{method.name}" for method in methods}
    return found


@pytest.mark.parametrize(
    "page", [ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name
)
def test_files_classes_and_functions_that_are_named_exist(page: Path) -> None:
    text = without_code(page.read_text("utf-8"))
    for path in re.findall(r"`([\w-]+(?:/[\w.-]+)+/?)`", text):
        assert any((place / path).exists() for place in (ROOT, ROOT / "coordinator")), f"there is no {path}"
    rows = re.findall(r"^\| `([\w/]+\.py)` \| (`[^|]+`) \|", text, re.MULTILINE)
    named = [(file, name) for file, names in rows for name in re.findall(r"`([\w.]+)`", names)]
    named += [(file, name) for name, file in re.findall(r"`([\w.]+)` (?:of|in) `([\w/]+\.py)`", text)]
    assert [(file, name) for file, name in named if name not in names_in(ROOT / file)] == []
    rooms = (ROOT / room for room in ("coordinator", "services", "worker", "lethe", "benchmarks"))
    everything = set().union(*(names_in(path) for room in rooms for path in room.rglob("*.py")))
    types = re.findall(r"`([A-Z][a-z]\w*(?:\.\w+)?)`", text)
    assert [name for name in types if name not in everything and name != "None"] == []


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_has_a_readme(room: str) -> None:
    assert (ROOT / room / "README.md").is_file()


def test_the_readme_of_the_store_has_a_line_for_each_module() -> None:
    store = ROOT / "coordinator" / "store"
    listed = re.findall(r"`(\w+)`(?=[^|\n]*\|[^|\n]*\|$)", (store / "README.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in store.glob("*.py") if path.stem != "__init__")


def test_each_error_code_is_documented_with_its_own_sentence() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| \d{3} \| (?:yes|no) \| (.+?) \|", page_text("problems.md"), re.MULTILINE)
    assert dict(rows) == CODES


def test_each_key_of_the_run_file_is_documented() -> None:
    documented = set(re.findall(r"^\| `([a-z_.]+)` \|", page_text("run-file.md"), re.MULTILINE))
    assert documented == set(keys(RunSpec))


def test_each_model_is_documented() -> None:
    from services.models.spec import CUSTOM, PARAMS

    (row,) = re.findall(r"^\| `model.name` \|(.+)$", page_text("run-file.md"), re.MULTILINE)
    assert {*PARAMS, CUSTOM} <= set(re.findall(r"`(\w+)`", row))
    assert set(re.findall(r"^\| (\w+) \|", (ROOT / "services/models/README.md").read_text(), re.MULTILINE)) == {
        "name",
        *PARAMS,
        CUSTOM,
    }


def test_each_setting_of_the_coordinator_and_variable_of_a_command_is_documented() -> None:
    from coordinator.runtime.settings import Settings

    settings = {f"LETHE_{name.upper()}" for name in Settings.model_fields}
    documented = re.findall(r"^\| `(LETHE_[A-Z_]+)` \|", page_text("operations.md"), re.MULTILINE)
    assert sorted(documented) == sorted(settings | variables(cli()) | {"LETHE_DATA"})


def test_each_option_of_the_worker_is_documented() -> None:
    (section,) = re.findall(r"^## Every option$(.+?)^## ", page_text("worker.md"), re.MULTILINE | re.DOTALL)
    documented = [name for row in re.findall(r"^\| (`--.+?) \|", section, re.MULTILINE) for name in row.split(", ")]
    options = [name for param in cli().commands["worker"].params for name in param.opts]
    assert sorted(documented) == sorted(f"`{name}`" for name in options)


def test_each_key_of_a_scenario_is_documented() -> None:
    from lethe.simulation.scenario import Data, Scenario, Stop, Training

    parts: dict[str, type[BaseModel]] = {"data": Data, "training": Training, "stop": Stop}
    named = {key for key in Scenario.model_fields if key not in parts}
    named |= {f"{part}.{key}" for part, model in parts.items() for key in model.model_fields}
    documented = re.findall(r"^\| `([a-z_.]+)` \| .+ \| .+ \|$", page_text("simulation.md"), re.MULTILINE)
    assert named <= set(documented), named - set(documented)


def cli() -> Any:
    import typer.main

    from lethe.cli import app

    return typer.main.get_command(app)


def variables(command: Any) -> set[str]:
    """Environment variables that options of a command, or of its commands, are read from."""
    own = {param.envvar for param in command.params if param.envvar}
    return own.union(*(variables(sub) for sub in getattr(command, "commands", {}).values()))


def test_each_decision_names_its_check() -> None:
    for page in (ROOT / "docs" / "adr").glob("0*.md"):
        headings = re.findall(r"^## (.+)$", page.read_text("utf-8"), re.MULTILINE)
        assert headings == ["Context", "Decision", "Consequences", "The check that enforces it"], page.name


def page_text(name: str) -> str:
    return (ROOT / "docs" / name).read_text("utf-8")


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every leaf of the specification as a dotted path; the branches of a union share their names."""
    for name, field in model.model_fields.items():
        parts = [part for part in nested_models(field.annotation) if part.model_fields]
        if not parts:
            yield prefix + name
        for part in parts:
            yield from keys(part, f"{prefix}{name}.")


def nested_models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in nested_models(part)]


def test_each_kind_and_disposition_of_an_artefact_is_documented_with_its_own_sentence() -> None:
    from services.audit.predicate import DISPOSITIONS, KINDS, POSSIBLE

    page = page_text("erasure.md")
    possible = {kind: ", ".join(f"`{one}`" for one in DISPOSITIONS if one in POSSIBLE[kind]) for kind in KINDS}
    rows = re.findall(r"^\| `([a-z-]+)` \| ([A-Z].+?) \| (`[a-z-]+`(?:, `[a-z-]+`)*) \|$", page, re.MULTILINE)
    assert {kind: said for kind, *said in rows} == {kind: [KINDS[kind], possible[kind]] for kind in KINDS}
    sentences = dict(re.findall(r"^\| `([a-z-]+)` \| ([A-Z][^|]+) \|$", page, re.MULTILINE))
    assert {disposition: sentences.get(disposition) for disposition in DISPOSITIONS} == DISPOSITIONS
