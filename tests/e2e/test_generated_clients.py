"""Other people's generators make clients of the contract, without a warning and without losing an operation; and the
TypeScript client that is committed is what its generator makes. Needs npm's and PyPI's registries; Node comes with the
project's own tools."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.installing import uv

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[2]
CONTRACT = ROOT / "openapi" / "v1.json"
TYPESCRIPT = ROOT / "openapi" / "clients" / "typescript"
BIN = Path(sys.executable).parent
OPERATIONS = {
    operation["operationId"]
    for operations in json.loads(CONTRACT.read_text("utf-8"))["paths"].values()
    for method, operation in operations.items()
    if method != "parameters"
}


def run(*command: str, cwd: Path, **environment: str) -> str:
    """What it says; fails when it does."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    ours = (line for line in said.splitlines() if not line.startswith("npm "))  # it complains of other settings
    return "\n".join(ours)


def camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def test_openapi_python_client_generates_every_operation_without_a_warning(tmp_path: Path) -> None:
    packages, out = tmp_path / "packages", tmp_path / "client"
    uv("pip", "install", "--python", sys.executable, "--target", str(packages), "openapi-python-client==0.29.1")
    generate = ("-m", "openapi_python_client", "generate", "--path", str(CONTRACT), "--output-path", str(out))
    said = run(sys.executable, *generate, "--meta", "none", "--fail-on-warning", cwd=tmp_path, PYTHONPATH=str(packages))
    assert "warning" not in said.lower()
    made = {path.stem for path in (out / "api").rglob("*.py")} - {"__init__"}
    assert made == OPERATIONS
    for path in out.rglob("*.py"):
        ast.parse(path.read_text("utf-8"))


def test_openapi_typescript_generates_every_operation_without_a_warning(tmp_path: Path) -> None:
    packages = {"openapi-typescript": "7.13.0", "typescript": "5.9.3"}
    (tmp_path / "package.json").write_text(json.dumps({"private": True, "devDependencies": packages}))
    run("npm", "install", "--no-audit", "--no-fund", cwd=tmp_path)
    said = run("npx", "openapi-typescript", str(CONTRACT), "-o", "types.ts", cwd=tmp_path)
    assert not re.search("warn|error|⚠|✘", said, re.IGNORECASE), said
    made = set(re.findall(r'operations\["(\w+)"\]', (tmp_path / "types.ts").read_text("utf-8")))
    assert made == OPERATIONS
    run("npx", "tsc", "--noEmit", "--strict", "types.ts", cwd=tmp_path)


def test_the_committed_typescript_client_is_what_its_generator_makes(tmp_path: Path) -> None:
    folder = tmp_path / "openapi" / "clients" / "typescript"
    shutil.copytree(TYPESCRIPT, folder, ignore=shutil.ignore_patterns("node_modules", "src"))
    shutil.copy(CONTRACT, tmp_path / "openapi" / "v1.json")
    run("npm", "ci", cwd=folder)
    run("npm", "run", "generate", cwd=folder)
    made, committed = (
        {str(path.relative_to(place)): path.read_text("utf-8") for path in (place / "src").rglob("*.ts")}
        for place in (folder, TYPESCRIPT)
    )
    assert made == committed, "run `make clients`"
    functions = set(re.findall(r"^export const (\w+) = <", made["src/sdk.gen.ts"], re.MULTILINE))
    assert functions == set(map(camel, OPERATIONS))
    run("npm", "run", "check", cwd=folder)


def test_no_host_gets_into_the_lock_file() -> None:
    assert "omit-lockfile-registry-resolved=true" in (TYPESCRIPT / ".npmrc").read_text("utf-8").splitlines()
    lock = (TYPESCRIPT / "package-lock.json").read_text("utf-8")
    assert '"resolved"' not in lock
