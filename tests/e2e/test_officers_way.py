"""The officer's way, with real processes: file, approve, read the certificate as a page, verify it and the log of acts
without the coordinator. The coordinator is killed in between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.deployment import Deployment, wait_until
from tests.support.forked import run_lethe


class Officer:
    """Somebody with a token, and the command."""

    def __init__(self, deployment: Deployment, token: str) -> None:
        self._environment = {**deployment.environment, "LETHE_URL": deployment.url(), "LETHE_TOKEN": token}

    def run(self, *arguments: str, fails: bool = False) -> str:
        """What the command prints; on the standard error, if it has to fail."""
        done = run_lethe(*arguments, env=self._environment)
        assert (done.returncode != 0) == fails, f"lethe {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stderr if fails else done.stdout

    def acts(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run("acts", "list", "--json").splitlines()]


def said(act: dict[str, Any], says: str) -> list[str | None]:
    pairs = zip(act["entry"]["parts"], act["opened"], strict=True)
    return [words and words["content"]["name"] for part, words in pairs if part["says"] == says]


def kill(deployment: Deployment) -> None:
    deployment.processes["coordinator"].end()
    deployment.restart("coordinator")


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_an_erasure_is_filed_approved_read_and_verified(
    tmp_path: Path, database: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("postgres_url") if database == "postgres" else None
    page, export = str(tmp_path / "certificate.html"), str(tmp_path / "acts.jsonl")
    certificate, key = str(tmp_path / "certificate.json"), str(tmp_path / "lethe.pub.pem")
    opening = str(tmp_path / "opening.json")
    with Deployment(tmp_path, url) as deployment:
        deployment.start_coordinator()
        federation_id, _ = deployment.enrol("f", ["hospital-a", "hospital-b"])
        with deployment.admin() as admin:
            admin.patch(f"/v1/federations/{federation_id}", json={"four_eyes": "asked"})
        tokens = {}
        for label in ("Dr. Weber", "Ms. Huber"):
            with deployment.admin() as admin:
                body = {"role": "compliance", "label": label}
                answer = admin.post(f"/v1/federations/{federation_id}/credentials", json=body)
            tokens[label] = answer.json()["token"]
        filer, approver = (Officer(deployment, token) for token in tokens.values())
        assert json.loads(filer.run("me", "--json"))["can"] == ["read", "file", "approve"]
        assert json.loads(filer.run("erase", "preview", "--client", "hospital-b", "--json"))["needs_approval"] is False
        said_why = ("--ground", "withdrawal", "--ref", "ticket-4711", "--note", "by letter")
        filed = json.loads(filer.run("erase", "--client", "hospital-b", "--approve-first", *said_why, "--json"))
        kill(deployment)
        assert "somebody else" in filer.run("erase", "approve", filed["id"], fails=True)
        assert filer.run("erase", "list", "--awaiting-me", "--json") == ""
        (awaiting,) = approver.run("erase", "list", "--awaiting-me", "--sort", "deadline", "--json").splitlines()
        assert json.loads(awaiting)["id"] == filed["id"]
        assert "by letter" in approver.run("erase", "note", filed["id"], "--json")
        approver.run("erase", "approve", filed["id"], "--reason", "the letter is signed", "--json")
        kill(deployment)
        wait_until(
            lambda: json.loads(filer.run("erase", "show", filed["id"], "--json"))["status"] == "completed",
            60,
            "the request is completed",
            deployment.logs,
        )
        filer.run("certificates", "get", filed["id"], "-o", certificate)
        filer.run("certificates", "key", "-o", key)
        filer.run("certificates", "opening", filed["id"], "-o", opening)
        filer.run("certificates", "show", filed["id"], "--format", "html", "-o", page)
        wait_until(lambda: len(filer.acts()) == 8, 30, "all acts are linked", deployment.logs)
        kill(deployment)
        acts = filer.acts()
        filer.run("acts", "export", "-o", export)
        nobody = Officer(deployment, "")
    shown = Path(page).read_text("utf-8")
    assert "Forgotten: one client, exactly" in shown
    assert all(words in shown for words in ("Dr. Weber", "Ms. Huber", "Two credentials", "consent was withdrawn"))
    nobody.run("verify", certificate, "--key", key, "--client", "hospital-b", "--opening", opening)
    nobody.run("verify", certificate, "--key", key, "--client", "hospital-a", "--opening", opening, fails=True)
    assert "Verified" in nobody.run("certificates", "show", certificate, "--key", key)
    assert "can be read by nobody any more" in nobody.run("verify", export, "--key", key)
    assert [act["entry"]["act"] for act in acts] == [
        *("federation.created", "client.enrolled", "client.enrolled", "federation.changed"),
        *("credential.issued", "credential.issued", "erasure.filed", "erasure.approved"),
    ]
    assert [said(act, "who") for act in acts[-2:]] == [["Dr. Weber"], ["Ms. Huber"]]
    assert [said(act, "whom") for act in acts[1:3]] == [["hospital-a"], [None]]
    assert "hospital-b" not in Path(export).read_text("utf-8") + shown
