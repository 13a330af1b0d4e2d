"""What each room can be imported without. Static contracts are import-linter's (pyproject.toml); these tests run the
imports in a fresh interpreter in which the forbidden packages cannot be found, as on a host without them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

IMPORT_EVERYTHING = """
import importlib, pkgutil, sys

rooms, blocked = sys.argv[1].split(","), set(filter(None, sys.argv[2].split(",")))

class Poison:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r} (poisoned)", name=name)

sys.meta_path.insert(0, Poison())
for room in rooms:
    package = importlib.import_module(room)
    assert package.__file__, f"{room} has no code yet"
    for module in pkgutil.walk_packages(getattr(package, "__path__", []), room + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""

COORDINATOR_ONLY = "sqlalchemy,asyncpg,alembic,redis,fastapi,starlette,uvicorn,prometheus_client,ortools"
TENSOR_LIBRARIES = "torch,safetensors,ortools,transformers"


def loaded_after_importing(rooms: str, *, without: str) -> set[str]:
    """Top-level names in sys.modules after importing every module of `rooms`."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IMPORT_EVERYTHING, rooms, without],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{rooms} needs more than it may:\n{done.stderr[-2000:]}"
    return set(done.stdout.split())


def test_every_room_of_the_coordinator_imports_without_torch() -> None:
    loaded_after_importing("coordinator", without=TENSOR_LIBRARIES)


def test_the_worker_imports_without_the_coordinators_packages() -> None:
    loaded_after_importing("worker", without=f"{COORDINATOR_ONLY},coordinator")


def test_the_mathematics_imports_without_http_and_sql() -> None:
    loaded_after_importing("services", without=f"{COORDINATOR_ONLY},httpx,coordinator,worker,lethe")


def test_the_engine_loads_no_database_network_or_tensor_library() -> None:
    loaded = loaded_after_importing("coordinator.engine", without="")
    assert not loaded & {"sqlalchemy", "asyncpg", "redis", "fastapi", "httpx", "torch"}


def test_plans_specs_and_messages_import_without_torch() -> None:
    split = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for name in ("plan.py", "spec.py")
        for path in (ROOT / "services").rglob(name)
    }
    loaded_after_importing(",".join(sorted(split | {"services.core", "services.wire"})), without=TENSOR_LIBRARIES)


def test_the_command_line_opens_without_torch() -> None:
    """`lethe --help` must not wait for torch, and the coordinator image does not have it."""
    assert "torch" not in loaded_after_importing("lethe.cli", without=TENSOR_LIBRARIES)
