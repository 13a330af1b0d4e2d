"""Each extra suffices for its role: installed alone from the wheel, in a clean environment, outside the source tree,
and used with the role's real commands."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest
import yaml

from tests.support.installing import ROOT, Installation, Installer

RUN = {
    "name": "digits",
    "model": {"name": "mlp", "params": {"input_shape": [1, 8, 8], "num_classes": 10, "hidden": [8]}},
    "local": {"epochs": 1, "batch_size": 64, "learning_rate": 0.1},
    "stop": {"rounds": 1},
    "validation": {"data": "builtin:digits"},
}
OWN_TASK = """
import services, worker  # the data holder's own, beside this file
from services.audit.canaries import with_canary  # ours: its own package has no such module
from services.data.sources import load
from services.training.task import BUILTIN_TASKS

assert services.NAME == worker.NAME == "clinic" and callable(with_canary)


def Task(data):
    return BUILTIN_TASKS["classifier"](load(data, ()), ())
"""


@pytest.fixture(scope="module")
def installer(tmp_path_factory: pytest.TempPathFactory) -> Installer:
    return Installer(tmp_path_factory.mktemp("installed"))


@dataclass(frozen=True)
class Federation:
    """A coordinator, a compute process and a worker that has trained a round, each with its own extra alone."""

    operator: Installation
    to_coordinator: dict[str, str]


@pytest.fixture(scope="module")
def federation(installer: Installer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    home = tmp_path_factory.mktemp("home")
    operator = installer.install()
    settings = {"LETHE_HOME": str(home), "LETHE_REDIS_URL": "redis://127.0.0.1:1", "LETHE_KERNEL_LEASE_S": "5"}
    serve = ("serve", "--port", "0", "--compute", "none")
    with (
        installer.install("coordinator").started(*serve, until="ready ", **settings) as url,
        installer.install("compute").started("compute", until="ready", **settings),
    ):
        to_coordinator = {"LETHE_URL": url, "LETHE_TOKEN_FILE": str(home / "admin.token")}
        operator.succeed("federations", "create", "clinics", **to_coordinator)
        worker = installer.install("worker")
        clients = []
        for number in range(3):
            token = worker.directory / f"{number}.token"
            operator.succeed("clients", "add", f"clinic-{number}", "--token-out", str(token), **to_coordinator)
            clients.append({"token_file": str(token), "data": f"digits#part={number}/3", "task": "clinic.py:Task"})
        (worker.directory / "fleet.yaml").write_text(yaml.safe_dump({"coordinator": url, "clients": clients}))
        for name in ("services", "worker", "coordinator"):
            (worker.directory / f"{name}.py").write_text("NAME = 'clinic'\n")
        (worker.directory / "clinic.py").write_text(OWN_TASK)
        (operator.directory / "run.yaml").write_text(yaml.safe_dump(RUN))
        directories = ("--cache-dir", "cache", "--ledger-dir", "ledger")
        with worker.started("worker", "--fleet", "fleet.yaml", "--display", "log", *directories):
            operator.succeed("runs", "create", "run.yaml", "--watch", **to_coordinator)
            yield Federation(operator, to_coordinator)


def test_without_an_extra_each_role_names_the_one_it_needs(installer: Installer, tmp_path: Path) -> None:
    plain = installer.install()
    (tmp_path / "file").write_text("{}")
    file = str(tmp_path / "file")
    needs = {
        "coordinator": (["serve"], ["db", "upgrade"], ["openapi"]),
        "compute": (["compute"],),
        "worker": (["worker", "--data", "digits"],),
        "verify": (["verify", file, "--key", file], ["certificates", "show", file]),
        "data": (["data", "get", "cifar10", "--data-dir", str(tmp_path)],),
        "language": (["models", "prepare", file, file, "--out", file],),
        "compute,worker": (["demo"], ["simulate", file]),
    }
    for extra, commands in needs.items():
        for command in commands:
            done = plain.run(*command)
            assert done.returncode == 2 and f"[{extra}]" in done.stderr, (command, done.stderr)
            assert "pip install lethe" not in done.stderr  # another project's name on PyPI
    assert "digits" in plain.succeed("data", "where") or plain.succeed("--version").startswith("lethe ")


def test_coordinator_compute_worker_and_plain_commands_train_a_round_together(federation: Federation) -> None:
    """The worker's folder has modules called like ours, which its task imports."""
    shown = federation.operator.succeed("runs", "show", "digits", "--json", **federation.to_coordinator)
    run = json.loads(shown)
    assert (run["status"], run["round"]) == ("completed", 1) and run["accuracy"] is not None


def test_dashboard_docs_and_verifier_come_with_the_wheel_and_load_nothing_from_elsewhere(
    federation: Federation, installer: Installer
) -> None:
    """Served by an installation without Node, without torch and without the source tree."""
    coordinator = installer.install("coordinator")
    assert "torch" not in {path.name for path in coordinator.directory.glob("environment/lib/*/site-packages/*")}
    assert not list(coordinator.directory.glob("environment/bin/n[op]*"))  # node, npm, npx
    with httpx.Client(base_url=federation.to_coordinator["LETHE_URL"], headers={"Accept": "text/html, */*"}) as browser:
        for page in ("/", "/requests", "/docs", "/verify.html"):
            shown = browser.get(page)
            assert shown.status_code == 200 and shown.headers["content-type"].startswith("text/html"), page
            named = re.findall(r"<(?:script|link|img)\b[^>]*?\b(?:src|href)=\"?([^\s\">]+)", shown.text)
            assert named or page == "/verify.html", page  # that one is a single file
            inside = {one for one in named if one.startswith("data:")}  # the tab's picture
            for address in set(named) - inside:
                loaded = browser.get(urljoin(page, address))
                assert not address.startswith(("http:", "https:", "//")), address
                assert loaded.status_code == 200 and loaded.content and "html" not in loaded.headers["content-type"]


def test_help_needs_no_extra(installer: Installer) -> None:
    said = installer.install().succeed("--help")
    assert "serve" in said and "demo" in said


def test_verify_verifies_and_replays_a_certificate(federation: Federation, installer: Installer) -> None:
    verifier, operator, settings = installer.install("verify"), federation.operator, federation.to_coordinator
    filed = ("erase", "--client", "clinic-1", "--watch")
    operator.succeed(*filed, **settings)
    [request] = map(json.loads, operator.succeed("erase", "list", "--json", **settings).splitlines())
    operator.succeed("certificates", "get", request["id"], "-o", f"{verifier.directory}/certificate.json", **settings)
    operator.succeed("certificates", "key", "-o", f"{verifier.directory}/key.pem", **settings)
    said = verifier.succeed("verify", "certificate.json", "--key", "key.pem", "--replay", **settings)
    assert "FAIL" not in said and "replay" in said
    page = verifier.succeed("certificates", "show", "certificate.json", "--key", "key.pem", "--format", "html")
    assert page.startswith("<!DOCTYPE html>") and "Verified: the signature" in page


def test_coordinator_alone_refuses_compute_in_threads_at_start_and_names_the_way_out(
    installer: Installer, tmp_path: Path
) -> None:
    refused = installer.install("coordinator").run("serve", "--port", "0", LETHE_HOME=str(tmp_path / "home"))
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
    assert "torch is not installed" in refused.stderr
    assert "[compute]" in refused.stderr and "--compute none" in refused.stderr
    assert not (tmp_path / "home").exists()


def test_coordinator_upgrades_postgres_and_prints_the_contract(installer: Installer, empty_postgres_url: str) -> None:
    coordinator = installer.install("coordinator")
    plain_url = empty_postgres_url.replace("postgresql+asyncpg://", "postgresql://")
    assert coordinator.succeed("db", "upgrade", LETHE_DATABASE_URL=plain_url).startswith("schema ")
    assert coordinator.succeed("openapi") == (ROOT / "openapi" / "v1.json").read_text("utf-8")


def test_compute_plays_a_scenario(installer: Installer) -> None:
    compute = installer.install("compute")
    run = {key: value for key, value in RUN.items() if key != "validation"}
    scenario = {"name": "tiny", "clients": 2, "data": {"source": "digits"}, "run": run}
    (compute.directory / "tiny.yaml").write_text(yaml.safe_dump(scenario))
    done = compute.run("simulate", "tiny.yaml", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])


def test_data_has_what_unpacks_cifar10(installer: Installer, tmp_path: Path) -> None:
    """npm is outside; that it is missing is told after the pictures' library was found."""
    done = installer.install("data").run("data", "get", "cifar10", "--data-dir", str(tmp_path), PATH=str(tmp_path))
    assert done.returncode != 0 and "npm" in done.stderr and "PIL" not in done.stderr


def test_report_draws_the_plots_of_a_clone(installer: Installer, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "benchmarks", tmp_path / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
    code = (
        "from pathlib import Path\nfrom benchmarks.plots import Bars\n"
        "from benchmarks.report import Report, Section, write\n"
        "plot = Bars('b', 'y', ['g'], {'s': [(1.0, 0.1)]})\n"
        "print(write(Report('r', 'c', [0], [], [Section('s', plots=[plot])]), Path('out')))"
    )
    done = installer.install("report").run_python(code, tmp_path)
    assert done.returncode == 0 and "<svg" in (tmp_path / "out" / "report.html").read_text("utf-8"), done.stderr


def test_language_builds_gpt2_with_adapters(installer: Installer) -> None:
    params = {"input_shape": [8], "num_classes": 257, "width": 8, "num_layers": 1, "num_heads": 1, "lora_rank": 2}
    run = {"name": "text", "model": {"name": "gpt2", "params": params}, "stop": {"rounds": 1}}
    language = installer.install("language")
    (language.directory / "run.yaml").write_text(yaml.safe_dump(run))
    (language.directory / "weights").write_bytes((2).to_bytes(8, "little") + b"{}")
    done = language.run("models", "prepare", "run.yaml", "weights", "--out", "init.safetensors")
    assert "do not fit: the model needs transformer.h.0" in done.stderr, done.stderr
