"""First steps at the command line: a new task, a kit, rows for other programs, tables that fit, completion."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from lethe.client.target import DEFAULT_URL
from lethe.commands.new import FILES
from lethe.commands.up import what_next
from tests.support import samples
from tests.unit.cli.conftest import Server

FEDERATION = samples.federation("f")
LONG = "a-client-of-a-large-hospital-with-a-name-as-long-as-it-may-be-01"[:63]


def test_a_new_task_simulates_and_its_own_test_passes(lethe: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert lethe("new", "flat-prices")[0] == 0
    folder = tmp_path / "flat-prices"
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert yaml.safe_load((folder / "run.yaml").read_text())["name"] == "flat-prices"
    assert all("my-task" not in path.read_text() for path in folder.iterdir())
    tested = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    done = subprocess.run(tested, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["My Task", "../up", "-x", "a" * 64])
def test_a_name_that_no_run_could_have_makes_nothing(lethe: Any, tmp_path: Path, monkeypatch: Any, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert lethe("new", "--", name)[0] == 2
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_there_is_left_alone(lethe: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "task.py").write_text("precious")
    code, _, err = lethe("new", "mine")
    assert code == 2 and "there already" in err
    assert (tmp_path / "mine" / "task.py").read_text() == "precious"


def test_a_kit_holds_what_a_data_holder_needs_and_is_private(server: Server, lethe: Any, tmp_path: Path) -> None:
    server.answers["GET /v1/federations"] = [(200, {"items": [FEDERATION]})]
    server.answers[f"POST /v1/federations/{FEDERATION['id']}/clients"] = [(201, samples.issued("t0ken"))]
    (tmp_path / "authorities.pem").write_text("PEM")
    out = tmp_path / "kit.tar.gz"
    address = ("--coordinator", "https://lethe.example.org", "--ca-file", str(tmp_path / "authorities.pem"))
    code, said, err = lethe("clients", "kit", "a", *address, "-o", str(out))
    assert code == 0 and "t0ken" not in said + err
    assert out.stat().st_mode & 0o777 == 0o600
    with tarfile.open(out) as archive:
        files = {entry.name: (entry.mode, _content(archive, entry)) for entry in archive}
    assert files["a/a.token"] == (0o600, "t0ken\n")
    assert files["a/ca.pem"][1] == "PEM"
    script = files["a/worker.sh"]
    assert (
        script[0] == 0o700
        and "--coordinator https://lethe.example.org --token-file a.token --ca-file ca.pem" in script[1]
    )
    command = yaml.safe_load(files["a/compose.yaml"][1])["services"]["worker"]["command"]
    assert command[:3] == ["worker", "--coordinator", "https://lethe.example.org"]
    assert "lethe worker check" in files["a/README.md"][1]
    assert all("t0ken" not in content for name, (_, content) in files.items() if not name.endswith(".token"))
    assert lethe("clients", "kit", "a", "-o", str(out))[0] == 2, "no second token is issued for a kit that is there"
    assert len([call for call, _, _ in server.seen if call.startswith("POST")]) == 1


def _content(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> str:
    file = archive.extractfile(entry)
    assert file is not None
    return file.read().decode()


@pytest.fixture
def run(server: Server) -> dict[str, Any]:
    run = samples.run("digits")
    server.answers["GET /v1/runs"] = [(200, {"items": [run]})]
    models = [samples.checkpoint(str(number), round=number, metrics={"validation_accuracy": 0.5}) for number in (1, 2)]
    server.answers[f"GET /v1/runs/{run['id']}/checkpoints"] = [(200, {"items": models})]
    page = {"items": [samples.event(1), samples.event(2, num_selected=3)]}
    server.answers[f"GET /v1/runs/{run['id']}/events?after=0&limit=200"] = [(200, page)]
    return run


def test_a_runs_rows_are_exported_as_json_lines(lethe: Any, run: Any, tmp_path: Path) -> None:
    code, out, _ = lethe("runs", "export", "digits")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [(row["run"], row["round"], row["accuracy"]) for row in rows] == [
        ("digits", 1, 0.5),
        ("digits", 2, 0.5),
    ]
    assert lethe("runs", "export", "digits", "--what", "events", "-o", str(tmp_path / "e.jsonl"))[0] == 0
    assert [json.loads(line)["seq"] for line in (tmp_path / "e.jsonl").read_text().splitlines()] == [1, 2]
    assert lethe("runs", "export", "digits", "-o", str(tmp_path / "e.jsonl"))[0] == 2, "it is there already"
    assert lethe("runs", "export", "digits", "-o", str(tmp_path / "e.xlsx"))[0] == 2


def test_parquet_needs_pyarrow_and_says_so(lethe: Any, run: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("lethe.exporting.find_spec", lambda name: None)
    code, _, err = lethe("runs", "export", "digits", "-o", str(tmp_path / "m.parquet"))
    assert code == 2 and "pip install pyarrow" in err and not list(tmp_path.glob("*.parquet"))


def test_a_runs_rows_are_exported_as_parquet(lethe: Any, run: Any, tmp_path: Path) -> None:
    out = tmp_path / "events.parquet"
    assert lethe("runs", "export", "digits", "--what", "events", "-o", str(out))[0] == 0
    assert import_module("pyarrow.parquet").read_table(out).column("seq").to_pylist() == [1, 2]


def _lists(server: Server) -> list[tuple[str, ...]]:
    """Commands that print tables, with rows as wide as they get."""
    run = samples.run(LONG, reason="the quorum of the last round was not met before its deadline", accuracy=0.98765)
    erasure = samples.erasure(subjects=[LONG], reason="a client's worker has not confirmed yet", chosen="retrain")
    cohort = samples.cohort(name="cluster-1/inner-0011", head=samples.id_of("head"), parent_id=samples.id_of("cohort"))
    answers = {
        "/v1/federations": [FEDERATION, samples.federation(LONG)],
        f"/v1/federations/{FEDERATION['id']}/clients": [samples.client(LONG, last_seen_at=samples.AT)],
        f"/v1/federations/{FEDERATION['id']}/credentials": [samples.credential(label="of the dashboard in the lobby")],
        "/v1/runs": [run],
        f"/v1/runs/{run['id']}/checkpoints": [samples.checkpoint(metrics={"validation_accuracy": 0.5})],
        f"/v1/runs/{run['id']}/cohorts": [cohort],
        "/v1/erasure-requests": [erasure],
    }
    server.answers.update({f"GET {path}": [(200, {"items": items})] for path, items in answers.items()})
    server.answers[f"GET /v1/erasure-requests/{erasure['id']}"] = [(200, erasure)]
    named = ("-f", FEDERATION["id"])
    return [
        ("federations", "list"),
        ("clients", "list", *named),
        ("credentials", "list", *named),
        ("runs", "list"),
        ("runs", "show", LONG),
        ("checkpoints", "list", LONG),
        ("erase", "list"),
        ("erase", "show", erasure["id"]),
        ("methods",),
    ]


def test_credentials_are_listed_with_the_names_of_their_clients(server: Server, lethe: Any) -> None:
    listed = [
        samples.credential(role="client", client_id=samples.id_of("client north"), client_name="north"),
        samples.credential(role="client", client_id=samples.id_of("client south")),
    ]
    server.answers[f"GET /v1/federations/{FEDERATION['id']}/credentials"] = [(200, {"items": listed})]
    code, out, _ = lethe("credentials", "list", "-f", FEDERATION["id"])
    assert code == 0 and "north" in out and samples.id_of("client north") not in out
    assert samples.id_of("client south") in out, "an older coordinator tells no names"


@pytest.mark.parametrize("width", [80, 100])
def test_tables_fit_a_terminal_and_break_no_word(server: Server, lethe: Any, monkeypatch: Any, width: int) -> None:
    for command in _lists(server):
        screen = io.StringIO()
        monkeypatch.setattr(
            "lethe.printing.console", Console(file=screen, width=width, force_terminal=True, no_color=True)
        )
        assert lethe(*command)[0] == 0, command
        lines = _plain(screen.getvalue()).splitlines()
        assert lines and max(map(len, lines)) <= width, (command, max(lines, key=len))
        if "show" not in command:  # ids can be copied
            for id in (samples.id_of(f"federation {LONG}"), samples.id_of("checkpoint head")):
                text = "\n".join(lines)
                assert id in text or id[:8] not in text


def _plain(text: str) -> str:
    import re

    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("lethe ru", "runs"), ("lethe runs ex", "export"), ("lethe erase --cl", "--client"), ("lethe worker ch", "check")],
)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_commands_and_options(typed: str, expected: str, shell: str) -> None:
    words = typed.split()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LETHE_")}
    environment |= {"_LETHE_COMPLETE": f"complete_{shell}", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
    environment |= {"_TYPER_COMPLETE_ARGS": typed, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    command = Path(sys.executable).with_name("lethe")
    done = subprocess.run([command], env=environment, capture_output=True, text=True, timeout=60)
    assert expected in done.stdout, done.stdout + done.stderr


def test_completion_can_be_installed(lethe: Any) -> None:
    code, out, _ = lethe("--help")
    assert code == 0 and "--install-completion" in out


def test_up_says_how_to_begin_a_run_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = "\n".join(what_next("http://127.0.0.1:9000", "builtin:classifier"))
    assert "lethe new" in said and "lethe --url http://127.0.0.1:9000 runs create" in said
    (tmp_path / "run.yaml").touch()
    said = "\n".join(what_next(DEFAULT_URL, "task.py:Task"))
    assert "lethe new" not in said and "models init run.yaml --task task.py:Task" in said and "--url" not in said
