"""A method that comes from another package: installed from its folder beside the wheel, it forgets a client, and the
certificate names it. What cannot be loaded is left out and named, and disturbs nobody."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.support.installing import ROOT, Installation, Installer

pytestmark = pytest.mark.timeout(600)
RUN = {
    "name": "digits",
    "model": {"name": "mlp", "params": {"input_shape": [1, 8, 8], "num_classes": 10, "hidden": [8]}},
    "local": {"epochs": 1, "batch_size": 64, "learning_rate": 0.1},
    "stop": {"rounds": 2},
}
CLASHING = "lethe-clashing-method"
BROKEN = "lethe-broken-method"


def copy_of(example: Path, folder: Path, package: str, **changes: str) -> Path:
    """The example under another name, with a text of its description changed."""
    module = package.replace("-", "_")
    shutil.copytree(example, folder, ignore=shutil.ignore_patterns("*.egg-info", "build", "__pycache__"))
    (folder / "lethe_own_method").rename(folder / module)
    for path in (folder / "pyproject.toml", *(folder / module).glob("*.py")):
        text = path.read_text("utf-8").replace("lethe_own_method", module).replace("lethe-own-method", package)
        for old, new in changes.items():
            text = text.replace(old, new)
        path.write_text(text)
    return folder


@dataclass(frozen=True)
class Coordinator:
    everything: Installation
    settings: dict[str, str]

    def succeed(self, *arguments: str) -> str:
        return self.everything.succeed(*arguments, **self.settings)


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """With the example, one of which the program's module is missing, and one with the name of a built-in method."""
    folder, example = tmp_path_factory.mktemp("packages"), ROOT / "examples" / "own-method"
    installer = Installer(tmp_path_factory.mktemp("installed"))
    everything = installer.install("compute,worker")
    installer.add(everything, copy_of(example, folder / "own", "lethe-own-method"))
    installer.add(everything, copy_of(example, folder / "broken", BROKEN, scale_out="bent"))
    (plan,) = everything.directory.glob("environment/lib/python*/site-packages/lethe_broken_method/plan.py")
    plan.unlink()
    installer.add(everything, copy_of(example, folder / "clashing", CLASHING, scale_out="retrain"))
    return everything


@pytest.fixture(scope="module")
def coordinator(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    home = tmp_path_factory.mktemp("home")
    with installation.started("serve", "--port", "0", until="ready ", LETHE_HOME=str(home)) as url:
        found = Coordinator(installation, {"LETHE_URL": url, "LETHE_TOKEN_FILE": str(home / "admin.token")})
        found.succeed("federations", "create", "clinics")
        clients = []
        for number in range(3):
            token = installation.directory / f"{number}.token"
            found.succeed("clients", "add", f"clinic-{number}", "--token-out", str(token))
            clients.append({"token_file": str(token), "data": f"digits#part={number}/3"})
        fleet = {"coordinator": url, "clients": clients}
        (installation.directory / "fleet.yaml").write_text(yaml.safe_dump(fleet))
        (installation.directory / "run.yaml").write_text(yaml.safe_dump(RUN))
        directories = ("--cache-dir", "cache", "--ledger-dir", "ledger")
        with installation.started("worker", "--fleet", "fleet.yaml", "--display", "log", *directories):
            found.succeed("runs", "create", "run.yaml", "--watch")
            yield found


def test_an_installed_method_forgets_a_client_and_its_certificate_names_the_package(coordinator: Coordinator) -> None:
    filed = ("erase", "--client", "clinic-1", "--approximate", "--method", "scale_out", "--watch")
    coordinator.succeed(*filed)
    [request] = map(json.loads, coordinator.succeed("erase", "list", "--json").splitlines())
    assert (request["status"], request["chosen"]) == ("completed", "scale_out"), request
    coordinator.succeed("certificates", "get", request["id"], "-o", "certificate.json")
    coordinator.succeed("certificates", "key", "-o", "key.pem")
    said = coordinator.succeed("verify", "certificate.json", "--key", "key.pem")
    assert "FAIL" not in said
    assert "by scale_out of lethe-own-method 0.1.0, approximate" in " ".join(said.split())


def test_a_broken_and_a_clashing_one_are_left_out_and_named(
    installation: Installation, coordinator: Coordinator
) -> None:
    listed = [json.loads(line) for line in installation.succeed("methods", "--json").splitlines()]
    own = {one["name"]: (one["package"], one["version"]) for one in listed if one["left_out"] is None}
    assert own["scale_out"] == ("lethe-own-method", "0.1.0") and own["retrain"][0] == "lethe"
    reasons = {one["package"]: one["left_out"] for one in listed if one["left_out"] is not None}
    assert reasons.keys() == {BROKEN, CLASHING}
    assert "No module named 'lethe_broken_method.plan'" in reasons[BROKEN]
    assert reasons[CLASHING] == "there is another method retrain"
    log = (installation.directory / "serve.log").read_text("utf-8")
    assert log.count("method.left-out") == 2 and BROKEN in log and CLASHING in log
