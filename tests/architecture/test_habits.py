"""Habits that no linter knows: who may read the clock, who knows httpx, what a module may be called."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("services", "coordinator", "worker", "lethe")
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "base", "misc"}
WALL_CLOCK = {"datetime.now", "datetime.utcnow", "datetime.datetime.now", "time.time", "time.time_ns", "date.today"}


def modules(*rooms: str) -> Iterator[tuple[str, ast.Module]]:
    for room in rooms:
        for path in sorted((ROOT / room).rglob("*.py")):
            yield str(path.relative_to(ROOT)), _parsed(path)


@functools.cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def imports(tree: ast.Module) -> set[str]:
    """Top-level packages imported anywhere in the module."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module.partition(".")[0])
    return found


def calls(tree: ast.Module) -> set[str]:
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


def test_no_module_has_an_empty_name() -> None:
    named = {name for name, _ in modules(*ROOMS) if set(Path(name).with_suffix("").parts) & EMPTY_NAMES}
    assert not named


def test_the_mathematics_and_the_engine_never_read_a_clock_or_ambient_randomness() -> None:
    for name, tree in modules("services", "coordinator/engine"):
        assert not calls(tree) & WALL_CLOCK, name
        assert not imports(tree) & {"time", "secrets"}, name
        assert not {call for call in calls(tree) if call.startswith(("random.", "torch.manual_seed", "uuid.uuid"))}, (
            name
        )


def test_one_module_of_the_coordinator_reads_the_wall_clock() -> None:
    readers = [name for name, tree in modules("coordinator") if calls(tree) & WALL_CLOCK]
    # Not counted: the file store, which compares the age of partial uploads with the file system's own timestamps.
    assert len(set(readers) - {"coordinator/blobs/files.py"}) <= 1, readers


def test_httpx_is_known_in_one_place_of_each_room_that_calls_others() -> None:
    readers = [name for name, tree in modules(*ROOMS) if "httpx" in imports(tree)]
    assert [name for name in readers if name.startswith("worker/")] in ([], ["worker/transport.py"])
    # One for each of the parties that the coordinator calls: callbacks, and the provider that people sign in with.
    callers = ["coordinator/runtime/openid.py", "coordinator/runtime/webhooks.py"]
    assert [name for name in readers if name.startswith("coordinator/")] == callers
    assert all(name.startswith(("worker/", "coordinator/", "lethe/client/")) for name in readers), readers


def test_nothing_pickles() -> None:
    for name, tree in modules(*ROOMS):
        assert not imports(tree) & {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}, name
        assert not calls(tree) & {"torch.load", "torch.save"}, name
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant) and node.value.value is False, name


NO_STATEMENTS = {"AsyncConnection", "IntegrityError", "SQLAlchemyError", "make_url"}
"""Names of SQLAlchemy that say nothing to the database."""


def test_all_sql_is_in_the_store() -> None:
    for name, tree in modules(*ROOMS):
        if name.startswith("coordinator/store/") or name == "coordinator/blobs/postgres.py":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "sqlalchemy":
                assert {alias.name for alias in node.names} <= NO_STATEMENTS, name
            elif isinstance(node, ast.Import):
                assert "sqlalchemy" not in {alias.name.partition(".")[0] for alias in node.names}, name
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("coordinator.store"):
                assert "tables" not in {*(node.module or "").split("."), *(alias.name for alias in node.names)}, name


COMMITS = {
    "coordinator/api/health.py",  # asks whether the database takes writes; changes nothing
    "coordinator/runtime/accounts.py",
    "coordinator/runtime/acts.py",
    "coordinator/runtime/browser_sessions.py",
    "coordinator/runtime/certificate_issuer.py",
    "coordinator/runtime/erasure_steps.py",
    "coordinator/runtime/evidence.py",
    "coordinator/runtime/federation_feed.py",
    "coordinator/runtime/kept_updates.py",
    "coordinator/runtime/openid.py",
    "coordinator/runtime/webhooks.py",
    "coordinator/runtime/presence.py",
    "coordinator/runtime/pump.py",
    "coordinator/runtime/evidence_comparison.py",
    "coordinator/runtime/remedies.py",
    "coordinator/runtime/shell.py",
    "coordinator/runtime/key_shredder.py",
    "coordinator/runtime/storage.py",
    "coordinator/runtime/sweeping.py",
    "coordinator/runtime/transactions.py",
    "coordinator/runtime/plain_blob_upgrade.py",
    "coordinator/runtime/uploads.py",
    "coordinator/runtime/worker_caches.py",
    "coordinator/store/schema.py",  # upgrades
    "coordinator/store/snapshots.py",  # copies the database of one instant
    "lethe/simulation/coordinator.py",
    "lethe/simulation/run.py",
}
"""The modules that may begin a transaction which is committed. The engine's decisions are the shell's alone."""


def test_only_these_modules_commit() -> None:
    writers = {name for name, tree in modules(*ROOMS) if any(_is_commit(call) for call in calls(tree))}
    assert writers == COMMITS
    deciders = {name for name, tree in modules("coordinator", "lethe") if "write_changes" in calls(tree)}
    assert deciders == {"coordinator/runtime/shell.py"}


def _is_commit(call: str) -> bool:
    return call == "transact" or call.endswith(("database.write", "past_the_gate().write"))
