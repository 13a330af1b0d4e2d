"""The documents agree with the code: links, error codes, keys of the run file, examples, a README in each room."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from services.core.errors import CODES
from services.models.spec import validate
from services.wire.v1.runs import RunSpec

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "deploy/**/*.md", "*/README.md", "coordinator/*/README.md")
    for page in ROOT.glob(pattern)
    if ".venv" not in page.parts
)
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


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_has_a_readme(room: str) -> None:
    assert (ROOT / room / "README.md").is_file()


def test_each_error_code_is_documented_with_its_own_sentence() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| \d{3} \| (?:yes|no) \| (.+?) \|", page_text("problems.md"), re.MULTILINE)
    assert dict(rows) == CODES


def test_each_key_of_the_run_file_is_documented() -> None:
    documented = set(re.findall(r"^\| `([a-z_.]+)` \|", page_text("run-file.md"), re.MULTILINE))
    assert documented == set(keys(RunSpec))


def test_the_run_files_in_the_documents_are_valid() -> None:
    examples = re.findall(r"^```yaml\n(name: .+?)^```", page_text("run-file.md"), re.MULTILINE | re.DOTALL)
    assert len(examples) >= 2
    for example in examples:
        validate(RunSpec.model_validate(yaml.safe_load(example)).model)


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
