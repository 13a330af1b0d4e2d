"""`lethe doctor`, `lethe backup` and `lethe restore` as commands, beside a coordinator that runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from lethe.commands import backup, doctor
from lethe.failures import CommandFailed
from tests.support.deployment import Deployment, wait_until
from tests.support.forked import run_lethe


def lethe(deployment: Deployment, *arguments: str, **settings: str) -> tuple[int, str, str]:
    done = run_lethe(*arguments, env={**deployment.environment, **settings})
    return done.returncode, done.stdout, done.stderr


def examined(deployment: Deployment, *arguments: str, **settings: str) -> tuple[int, dict[str, Any]]:
    code, printed, said = lethe(deployment, "doctor", "--json", *arguments, **settings)
    assert printed, said
    return code, json.loads(printed)


def names(report: dict[str, Any]) -> set[str]:
    return {finding["name"] for finding in report["findings"]}


def test_the_commands_look_save_and_put_back_beside_a_coordinator_that_runs(tmp_path: Path) -> None:
    with Deployment(tmp_path, is_examined=False) as deployment:
        deployment.start_coordinator()
        deployment.enrol("f", ["a"])
        code, report = examined(deployment)
        assert (code, report["well"], report["findings"]) == (0, True, []) and "background" in report["looked"]

        saved, keys = str(tmp_path / "backup"), str(tmp_path / "keys")
        code, printed, said = lethe(deployment, "backup", saved, "--keys", keys, "--json")
        assert code == 0 and "after each erasure" in said
        assert json.loads(printed)["backup"]["holds"] == "database-and-blobs"
        elsewhere = {"LETHE_HOME": str(tmp_path / "elsewhere")}
        code, _, said = lethe(deployment, "restore", saved, "--keys", keys, **elsewhere)
        assert code == 0, said
        assert examined(deployment, "--deep", **elsewhere)[0] == 0

        (tmp_path / "home" / "evidence" / "tombstones.jsonl").write_text("damaged\n")
        ready = f"{deployment.url()}/readyz"
        wait_until(lambda: httpx.get(ready, timeout=30).status_code == 503, 30, "the coordinator says so")
        code, report = examined(deployment)
        assert code == 1 and names(report) >= {"background-down", "tombstones-damaged"}, report


def test_to_look_where_nothing_is_makes_nothing_and_ends_with_code_2(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="no installation") as failed:
        doctor.doctor(home=tmp_path / "nowhere")
    assert failed.value.exit_code == 2 and not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("directory", "keys"), [("b", "b/keys"), ("k/b", "k"), ("b", "b"), ("home/b", "k"), ("b", "home/k")]
)
def test_keys_backups_and_the_home_lie_apart(directory: str, keys: str, tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="lies within"):
        backup.backup(directory=tmp_path / directory, keys=tmp_path / keys, home=tmp_path / "home")
    assert not list(tmp_path.iterdir())
