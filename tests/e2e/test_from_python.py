"""The Python client as its page and its notebook use it, against a real coordinator with real workers; and a newcomer's
first hour at the command line, from `lethe new` to a certificate."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lethe.children import Children
from lethe.local_federation import LocalFederation
from tests.support.deployment import wait_until
from tests.support.documents import EXAMPLES, FROM_PYTHON, blocks
from tests.support.forked import run_lethe

pytestmark = pytest.mark.timeout(600)
COMMAND = [sys.executable, "-P", "-m", "lethe.cli"]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A directory with a federation of three, as after `lethe up`, and its address."""
    directory = tmp_path_factory.mktemp("federation")
    home = directory / "lethe-data"
    home.mkdir()
    with Children(home) as children:
        yield directory, LocalFederation(home, 0, 3).start(children, lambda text: None)


@pytest.fixture
def at_home(federation: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In that directory."""
    directory, url = federation
    monkeypatch.chdir(directory)
    for name in [name for name in os.environ if name.startswith("LETHE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LETHE_URL", url)


@pytest.mark.usefixtures("at_home")
def test_the_page_runs_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, Any] = {"__name__": "a_reader"}
    try:
        for block in blocks():
            if block.page == FROM_PYTHON and block.language == "python":
                exec(compile(block.text, block.place, "exec"), namespace)
    finally:
        namespace["client"].close()
    out = capsys.readouterr().out
    assert "True True" in out and "name-taken 409" in out and "no run called no-such-run" in out


@pytest.mark.usefixtures("at_home")
def test_the_notebook_runs_as_it_is() -> None:
    notebook = json.loads((EXAMPLES / "quickstart.ipynb").read_text("utf-8"))
    assert notebook["nbformat"] == 4
    namespace: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "it is committed without outputs"
            shown.append(_run_cell("".join(cell["source"]), namespace))
    tables = [html() for one in shown if (html := getattr(one, "_repr_html_", None)) is not None]
    assert len(tables) >= 4 and all("<table" in html for html in tables)


def _run_cell(source: str, namespace: dict[str, Any]) -> Any:
    """As a notebook does: the value of a last expression is what the cell shows."""
    import ast

    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), namespace)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)
    return None


class Newcomer:
    """A shell in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LETHE_")}
        self.environment = {
            **kept,
            "OMP_NUM_THREADS": "1",
            "XDG_CACHE_HOME": str(directory / "cache"),
            "XDG_STATE_HOME": str(directory / "state"),
        }

    def lethe(self, *arguments: str) -> str:
        done = run_lethe(*arguments, cwd=self.directory, env=self.environment, timeout=180)
        assert done.returncode == 0, f"lethe {' '.join(arguments)}\n{done.stdout}{done.stderr}"
        return done.stdout

    @contextlib.contextmanager
    def started(self, *arguments: str, until: str) -> Iterator[str]:
        """A process that is ended with Ctrl-C. Gives what follows `until` on its line."""
        log = self.directory / f"{arguments[0]}-said.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*COMMAND, *arguments],
                cwd=self.directory,
                env={**self.environment, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

        def line() -> str | None:
            assert process.poll() is None, log.read_text()
            said = log.read_text().splitlines()
            return next((one.removeprefix(until).strip() for one in said if one.startswith(until)), None)

        try:
            wait_until(lambda: line() is not None, 150.0, until, log.read_text)
            yield str(line())
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0, log.read_text()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_a_newcomers_first_hour(tmp_path: Path) -> None:
    """new, simulate, up, a run, one more client with its own worker, erase, certificate; then everything again."""
    Newcomer(tmp_path).lethe("new", "flats")
    here = Newcomer(tmp_path / "flats")
    simulated = [json.loads(line) for line in here.lethe("simulate", "simulation.yaml", "--json").splitlines()]
    assert any(row.get("status") == "completed" and row.get("subjects") == ["client-3"] for row in simulated)
    own = ("--task", "task.py:Task", "--data", "{number}")
    with here.started("up", "--clients", "3", "--port", "0", *own, until="up ") as url:
        here.environment["LETHE_URL"] = url
        here.lethe("models", "init", "run.yaml", "--task", "task.py:Task", "--data", "0")
        here.lethe("clients", "kit", "neighbour", "-o", "kit.tar.gz")
        shutil.unpack_archive(here.directory / "kit.tar.gz", here.directory, filter="data")
        run = json.loads(here.lethe("runs", "create", "run.yaml", "--json"))
        token = str(Path("neighbour") / "neighbour.token")
        serve = ("worker", "--coordinator", url, "--token-file", token, "--task", "task.py:Task", "--data", "7")
        here.lethe(*serve, "--once", "--wait", "60")
        sent = json.loads(here.lethe("worker", "report", "--json"))["sent"]
        assert [(one["client"], one["run"]) for one in sent] == [("neighbour", "flats")]
        here.lethe("erase", "--client", "neighbour", "--watch")
        here.lethe("runs", "watch", run["id"])
        assert "neighbour" not in json.loads(here.lethe("checkpoints", "lineage", "flats", "--json"))["clients"]
        here.lethe("certificates", "get", "neighbour", "-o", "certificate.json")
        here.lethe("certificates", "key", "-o", "lethe.pub.pem")
        assert "ok" in here.lethe("verify", "certificate.json", "--key", "lethe.pub.pem")
        rows = [json.loads(line) for line in here.lethe("runs", "export", "flats").splitlines()]
        assert max(row["round"] for row in rows) == 5
    with here.started("up", "--clients", "3", "--port", "0", *own, until="up ") as url:
        here.environment["LETHE_URL"] = url
        names = [json.loads(line)["name"] for line in here.lethe("clients", "list", "--json").splitlines()]
        assert sorted(names) == ["client-0", "client-1", "client-2", "neighbour"], "the same clients as before"
        assert "flats" in here.lethe("runs", "list")
