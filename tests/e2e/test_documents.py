"""The documents as a newcomer follows them: the README's tour is pasted into a shell, and every other shell block goes
on in the same shell, page by page, against the coordinator and the workers that the tour started."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.documents import EXAMPLES, SESSION, Block, blocks
from tests.support.forked import write_command
from tests.support.servers import free_port

DEFAULT_PORT: Final = "8440"
BEFORE: Final = {
    "docs/joining.md": """
sed 's/^name: .*/name: digits-for-long/; s/rounds: 5/rounds: 100000/' digits.yaml > for-long.yaml
lethe runs create for-long.yaml
lethe runs pause digits-for-long
""",
    "docs/erasure.md": """
for id in $(lethe runs list --json | sed -n 's/^{"id": *"\\([^"]*\\)".*/\\1/p'); do
  call -X POST $LETHE/v1/runs/$id/cancel > cancelled.json  # or each would be trained again after each erasure
done
sed 's/^name: .*/name: digits-again/' digits.yaml > again.yaml
lethe runs create again.yaml --watch
""",
}
"""What a page takes for granted beside the tour, and what saves time."""


def in_order() -> list[Block]:
    """Blocks to be run, in the order of the session; those that come last say so."""
    run = [block for page in SESSION for block in blocks() if block.page == page and block.check == "sh"]
    return sorted(run, key=lambda block: block.comment == "run last")


def script(port: int) -> str:
    parts, page = [], ""
    for block in in_order():
        if block.page != page and block.page in BEFORE:
            parts.append(f"echo '@@ before {block.page}'\n{BEFORE[block.page]}")
        page = block.page
        parts.append(f"echo '@@ {block.place}'\n{block.text}")
    return "".join([*parts, "echo '@@ the end'\n"]).replace(f":{DEFAULT_PORT}", f":{port}")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """What the tour expects to find: an environment to activate, and the examples."""
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    activate = tmp_path / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    write_command(activate.parent)
    activate.write_text(f"export PATH='{activate.parent}':'{Path(sys.executable).parent}':$PATH\n")
    return tmp_path


def test_every_example_is_used_by_the_documents() -> None:
    """But for the fleet, which is the tour's three workers in one, and the scenario of tests/unit/simulation."""
    used = script(0)
    examples = {file.name for file in EXAMPLES.glob("*.yaml")} - {"fleet.yaml", "own-simulation.yaml"}
    assert not {name for name in examples if f" {name}" not in used}


@pytest.mark.timeout(600)
def test_the_tour_and_every_shell_block_run_as_printed(repository: Path) -> None:
    port = free_port()
    for file in (repository / "examples").glob("*.yaml"):
        file.write_text(file.read_text("utf-8").replace(f":{DEFAULT_PORT}", f":{port}"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LETHE_", "PYTHONDONT"))}
    home = repository / "user"
    environment |= {
        "LETHE_PORT": str(port),
        "LETHE_URL": f"http://127.0.0.1:{port}",
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_STATE_HOME": str(home / "state"),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "160",
    }
    log = repository / "session.log"
    with log.open("wb") as output:
        # Like a paste: the shell reads its commands from standard input, and a command that reads there eats the rest.
        shell = subprocess.Popen(
            ["bash", "-e", "-o", "pipefail"],
            cwd=repository,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            shell.communicate(script(port).encode(), timeout=500)
        finally:
            with contextlib.suppress(ProcessLookupError):  # whatever the session left running
                os.killpg(shell.pid, signal.SIGKILL)
    said = log.read_text("utf-8", errors="replace")
    assert shell.returncode == 0 and said.endswith("@@ the end\n"), f"stopped here:\n{said[-6000:]}"
