"""Every fenced block of the documents is tried out, or says why not in a comment before it: `<!-- not run: … -->`.

Shell blocks are run by tests/e2e/test_documents.py; here their `lethe` commands are looked up, those of blocks that are
not run as well. `<!-- file: … -->` says that a block is the text of a file.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import typer.main
import yaml

from lethe import run_file
from lethe.cli import app
from lethe.incentive_preview import GameFile
from lethe.simulation import scenario
from services.core.errors import CODES
from services.wire.v1.erasure import ErasureCreate
from services.wire.v1.resources import Problem
from tests.support.documents import EXAMPLES, PAGES, SESSION, Block, blocks
from worker.settings import FleetFile

BLOCKS = blocks()
COMMAND = typer.main.get_command(app)
MINIMAL_RUN = {"name": "minimal", "model": {"name": "mlp", "params": {"input_shape": [2], "num_classes": 2}}}
OPERATORS = {"|", "||", "&", "&&", ";", ">", ">>", "<", "2>&1", "2>"}
INLINE = re.compile(r"(?<!`)`(lethe [a-z][^`]*)`(?!`)")


def of_kind(check: str) -> list[Any]:
    return [pytest.param(block, id=block.place) for block in BLOCKS if block.check == check]


def test_every_block_is_tried_out_or_says_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    counts = Counter(block.check or "neither" for block in BLOCKS)
    with capsys.disabled():
        print(f"\nblocks of the documents: {len(BLOCKS) - counts['not run']} tried out, {counts['not run']} not")
        print("  tried out: " + ", ".join(f"{kind} {counts[kind]}" for kind in sorted(counts) if kind != "not run"))
        for block in BLOCKS:
            if block.reason_not_to_run is not None:
                print(f"  not run: {block.place}: {block.reason_not_to_run}")
    assert not [block.place for block in BLOCKS if block.check is None], "run these, or say why not before them"
    assert {block.page for block in BLOCKS if block.check == "sh"} == set(SESSION)


@pytest.mark.parametrize("block", [pytest.param(block, id=block.place) for block in BLOCKS if block.file])
def test_a_block_that_names_a_file_is_its_text(block: Block) -> None:
    assert block.file is not None and block.text == block.file.read_text("utf-8")


@pytest.mark.parametrize("block", of_kind("yaml"))
def test_yaml_in_the_documents_is_valid(block: Block) -> None:
    check_yaml(yaml.safe_load(block.text), Path(block.place))


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.name)
def test_an_example_is_valid_and_listed(file: Path) -> None:
    check_yaml(yaml.safe_load(file.read_text("utf-8")), file)
    assert f"`{file.name}`" in (EXAMPLES / "README.md").read_text("utf-8")


def check_yaml(document: dict[str, Any], place: Path) -> None:
    """A scenario, a game about jobs, a fleet, a run file, or some keys of a run file."""
    if "run" in document:
        scenario.parse(document, place)
    elif "jobs" in document:
        GameFile.model_validate(document)
    elif isinstance(document.get("clients"), list) and "model" not in document:
        FleetFile.model_validate(document)
    else:
        run_file.check(place, {**MINIMAL_RUN, **document})


@pytest.mark.parametrize("block", of_kind("json"))
def test_json_in_the_documents_is_what_is_sent(block: Block) -> None:
    document = json.loads(block.text)
    if "subjects" in document:
        ErasureCreate.model_validate_json(block.text)
    elif "code" in document:
        problem = Problem.model_validate(document)
        assert problem.title == CODES[problem.code] and problem.type == f"/v1/problems/{problem.code}"
    else:
        assert document["type"] == f"erasure.{document['data']['status']}"
        assert set(document) == {"type", "timestamp", "data"}
        assert set(document["data"]) == {"erasure_id", "federation_id", "seq", "status", "reason"}
        assert UUID(document["data"]["erasure_id"]) and UUID(document["data"]["federation_id"])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("block", of_kind("python"))
def test_python_in_the_documents_runs_beside_the_examples(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    exec(compile(block.text, block.place, "exec"), {"__name__": "a_newcomer"})


@pytest.mark.parametrize("block", of_kind("picture"))
def test_a_picture_can_be_drawn(block: Block) -> None:
    if block.language == "mermaid":
        lines = [line.strip() for line in block.text.splitlines()]
        assert re.match(r"flowchart (LR|TB|TD)$", lines[0])
        assert sum(line.startswith("subgraph ") for line in lines) == lines.count("end")
        assert block.text.count("[") == block.text.count("]") and block.text.count("(") == block.text.count(")")
        assert block.text.count('"') % 2 == 0
    else:  # drawn with characters: they must stay in their columns
        assert "\t" not in block.text and max(map(len, block.text.splitlines())) <= 120


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(EXAMPLES.parent)))
def test_each_lethe_command_in_the_documents_exists_with_its_options(page: Path) -> None:
    shown = [block.text for block in BLOCKS if block.language == "sh" and EXAMPLES.parent / block.page == page]
    in_blocks = [line for text in shown for line in text.replace("\\\n", " ").splitlines()]
    in_prose = INLINE.findall(re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL))
    for line in [line.strip() for line in in_blocks if line.strip().startswith("lethe ")] + in_prose:
        look_up(line)


def look_up(line: str) -> None:
    """Walk the Click tree behind the command."""
    words = shlex.split(line.replace("…", ""), comments=True)[1:]
    end = next((i for i, word in enumerate(words) if word in OPERATORS or word.startswith("#")), len(words))
    command: Any = COMMAND
    left, context = words[:end], None
    while True:
        context = command.make_context("lethe", list(left), parent=context, resilient_parsing=True)
        is_group = hasattr(command, "commands")
        rest = [*getattr(context, "_protected_args", ()), *context.args] if is_group else []
        known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)} | {"-h", "--help"}
        given = {word.partition("=")[0] for word in left[: len(left) - len(rest)] if word.startswith("-")}
        assert given <= known or context.ignore_unknown_options, f"{line}: there is no {', '.join(given - known)}"
        if not rest:
            return
        assert rest[0] in command.commands, f"{line}: there is no {rest[0]}"
        command, left = command.commands[rest[0]], rest[1:]
