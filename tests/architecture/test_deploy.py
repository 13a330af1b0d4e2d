"""What deploy/ promises: images and compose start commands that exist, as users that are not root, with the settings
that docs/operations.md lists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
DOCKERFILES = sorted(DEPLOY.glob("Dockerfile.*"))
EXTRAS = {"coordinator": "coordinator", "compute": "compute", "worker": "worker"}


def subcommands(command: list[str]) -> list[str]:
    """The words before the first option: ["db", "upgrade"] of `lethe db upgrade --x`."""
    return command[: next((i for i, word in enumerate(command) if word.startswith("-")), len(command))]


def exec_form(text: str, instruction: str) -> list[str]:
    match = re.search(rf"^{instruction} (\[.+\])$", text, re.MULTILINE)
    assert match, f"{instruction} is missing or not in exec form"
    command: list[str] = json.loads(match.group(1))
    return command


def assert_is_a_command(words: list[str]) -> None:
    """Walks the Click tree behind the `lethe` command."""
    import typer.main

    from lethe.cli import app

    here: Any = typer.main.get_command(app)
    for word in words:
        assert word in here.commands, f"lethe {' '.join(words)} is no command"
        here = here.commands[word]


@pytest.mark.parametrize("name", OURS)
def test_compose_starts_a_real_subcommand(name: str) -> None:
    assert_is_a_command(subcommands(OURS[name]["command"]))


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_starts_a_real_subcommand(dockerfile: Path) -> None:
    text = dockerfile.read_text("utf-8")
    assert exec_form(text, "ENTRYPOINT") == ["lethe"]
    assert_is_a_command(subcommands(exec_form(text, "CMD")))


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_runs_as_an_unprivileged_user_and_installs_its_role_only(dockerfile: Path) -> None:
    text = dockerfile.read_text("utf-8")
    users = re.findall(r"^USER (\d+):\d+$", text, re.MULTILINE)
    assert users and int(users[-1]) >= 10000
    assert f"'.[{EXTRAS[dockerfile.suffix[1:]]}]'" in text


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_copies_only_what_exists_and_is_not_ignored(dockerfile: Path) -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")}
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile.read_text("utf-8"), re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists(), source
            assert source in kept, f"{source} is not in the build context"


def test_compose_has_every_role() -> None:
    commands = [subcommands(service["command"]) for service in OURS.values()]
    assert {"postgres", "valkey"} <= SERVICES.keys()
    for words in (["serve"], ["compute"], ["db", "upgrade"]):
        assert words in commands
    assert commands.count(["worker"]) == 2


@pytest.mark.parametrize("name", OURS)
def test_our_services_are_hardened(name: str) -> None:
    service = OURS[name]
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
    assert "privileged" not in service and "user" not in service
    assert (ROOT / service["build"]["dockerfile"]).is_file()


def test_every_server_has_a_healthcheck_and_the_coordinators_asks_readyz() -> None:
    for name in ("postgres", "valkey", "coordinator"):
        assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"
    assert "/readyz" in " ".join(SERVICES["coordinator"]["healthcheck"]["test"])
    assert "/readyz" in (DEPLOY / "Dockerfile.coordinator").read_text("utf-8")


def test_what_a_service_refers_to_is_declared() -> None:
    for name, service in SERVICES.items():
        assert set(service.get("secrets", [])) <= COMPOSE["secrets"].keys(), name
        assert service.get("depends_on", {}).keys() <= SERVICES.keys(), name
        named = {volume.partition(":")[0] for volume in service.get("volumes", [])}
        assert {volume for volume in named if not volume.startswith(".")} <= COMPOSE["volumes"].keys(), name
    for secret in COMPOSE["secrets"].values():
        assert (DEPLOY / (secret["file"] + ".example")).is_file(), secret


def test_a_role_waits_for_the_schema() -> None:
    for name in ("coordinator", "compute"):
        assert SERVICES[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}


def test_each_setting_used_here_is_documented() -> None:
    documented = set(re.findall(r"`(LETHE_[A-Z_]+)`", (ROOT / "docs" / "operations.md").read_text("utf-8")))
    used = {name for service in OURS.values() for name in service.get("environment", {})}
    for dockerfile in DOCKERFILES:
        used |= set(re.findall(r"\b(LETHE_[A-Z_]+)=", dockerfile.read_text("utf-8")))
    assert used <= documented


def test_nothing_says_to_install_lethe_by_name_from_an_index() -> None:
    """On PyPI another project has the name: install the wheel, or a clone."""
    by_name = re.compile(r"pip install[^\n]*?['\" ]lethe(\[|['\"\s]|$)")
    folders = (
        "README.md",
        "CONTRIBUTING.md",
        "docs",
        "deploy",
        "lethe",
        "services",
        "worker",
        "coordinator",
        "benchmarks",
    )
    for place in folders:
        path = ROOT / place
        for file in [path] if path.is_file() else [*path.rglob("*.md"), *path.rglob("*.py")]:
            assert not by_name.search(file.read_text("utf-8")), file
