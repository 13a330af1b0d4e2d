"""`lethe serve`, `db` and the demo's supervision, as real processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from lethe.demo.processes import ProcessEnded, Processes
from tests.support.deployment import wait_until

READY_WITHIN_S = 90.0
"""A cold start on a machine with busy neighbours; usually about two seconds."""


def environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("LETHE_")}


def lethe(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lethe.cli", *arguments],
        env={**environment(), **settings},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_serve_says_where_everything_is_answers_and_ends_gracefully(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        child = processes.start("coordinator", "serve", "--home", str(tmp_path / "home"), "--port", "0")
        url = processes.wait_for_line(child, "ready ", within_s=READY_WITHIN_S)
        said = "\n".join(child.tail(20))
        assert f"{url}/docs" in said and str(tmp_path / "home" / "admin.token") in said
        assert httpx.get(f"{url}/readyz", timeout=30).status_code == 200
        token = (tmp_path / "home" / "admin.token").read_text().strip()
        listed = lethe("--url", url, "federations", "list", "--json", LETHE_TOKEN=token)
        assert (listed.returncode, listed.stdout) == (0, ""), listed.stderr
        child.signal_group(signal.SIGTERM)
        assert child.process.wait(30) == 0


def test_serve_refuses_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = lethe("serve", "--home", str(tmp_path / "home"), "--port", str(taken.getsockname()[1]))
    assert done.returncode == 1 and "cannot listen on" in done.stderr and "--port 0" in done.stderr


def test_unusable_settings_are_named(tmp_path: Path) -> None:
    done = lethe("serve", "--home", str(tmp_path), "--port", "99999")
    assert done.returncode == 2 and "--port: found '99999'" in done.stderr


def test_serve_refuses_a_schema_that_is_behind_and_names_the_command_that_upgrades_it(
    tmp_path: Path, empty_postgres_url: str
) -> None:
    settings = {"LETHE_DATABASE_URL": empty_postgres_url, "LETHE_HOME": str(tmp_path)}
    refused = lethe("serve", "--port", "0", **settings)
    assert refused.returncode == 1 and "next:  lethe db upgrade" in refused.stderr
    upgraded = lethe("db", "upgrade", **settings)
    assert upgraded.returncode == 0, upgraded.stderr
    current = json.loads(lethe("db", "current", "--json", **settings).stdout)
    assert current["current"] == current["newest"]


def test_a_process_that_ended_is_noticed(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        child = processes.start("odd", "no-such-command")
        with pytest.raises(ProcessEnded, match="odd ended with code 2"):
            processes.wait_for_line(child, "ready", within_s=60)


def test_no_process_outlives_its_block_even_when_the_block_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), Processes(tmp_path) as processes:
        child = processes.start("coordinator", "serve", "--home", str(tmp_path / "home"), "--port", "0")
        raise RuntimeError
    assert child.process.returncode is not None
    with pytest.raises(ProcessLookupError):
        os.killpg(child.process.pid, 0)


def test_serve_on_a_home_that_lacks_a_column_names_it_and_what_to_do(tmp_path: Path) -> None:
    assert lethe("db", "upgrade", "--home", str(tmp_path)).returncode == 0
    with contextlib.closing(sqlite3.connect(tmp_path / "lethe.db")) as database:
        database.execute("ALTER TABLE clients DROP COLUMN agent_version")
    for command in (("serve", "--port", "0"), ("db", "upgrade")):
        done = lethe(*command, "--home", str(tmp_path))
        assert done.returncode == 1, done.stderr
        assert "lacks clients.agent_version" in done.stderr and "restore a backup" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["compute"]])
def test_processes_end_with_error_and_next_step(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "evidence").touch()
    done = lethe(*command, LETHE_HOME=str(tmp_path))
    assert done.returncode == 2 and "choose another with LETHE_EVIDENCE_DIR" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_a_coordinator_that_waits_for_its_database_can_be_stopped(tmp_path: Path) -> None:
    settings = {"LETHE_HOME": str(tmp_path / "home"), "LETHE_DATABASE_URL": "postgresql://a@127.0.0.1:1/b"}
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "lethe.cli", "serve", "--port", "0"],
            env={**environment(), **settings},
            stdout=output,
            stderr=output,
        )
    wait_until(lambda: b"database.awaited" in log.read_bytes(), 120, "it waits", log.read_text)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == -signal.SIGTERM
