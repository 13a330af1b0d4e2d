"""Documents as a coordinator answers them, for tests that have no coordinator."""

from __future__ import annotations

from typing import Any
from uuid import NAMESPACE_URL, uuid5

AT = "2026-01-01T00:00:00Z"
DIGEST = "sha256:" + "0" * 64


def id_of(name: str) -> str:
    """A UUID for a name, always the same."""
    return str(uuid5(NAMESPACE_URL, name))


def federation(name: str = "f", **changes: Any) -> dict[str, Any]:
    return {"id": id_of(f"federation {name}"), "name": name, "created_at": AT, **changes}


def client(name: str = "a", **changes: Any) -> dict[str, Any]:
    return {
        "id": id_of(f"client {name}"),
        "federation_id": id_of("federation f"),
        "name": name,
        "status": "active",
        "created_at": AT,
        "online": False,
        **changes,
    }


def issued(token: str = "t0ken", **changes: Any) -> dict[str, Any]:
    return {"id": id_of("credential"), "role": "client", "token": token, "client": client(), **changes}


def credential(**changes: Any) -> dict[str, Any]:
    return {
        "id": id_of("credential"),
        "role": "viewer",
        "label": "",
        "client_id": None,
        "created_at": AT,
        "revoked_at": None,
        **changes,
    }


def run(name: str = "digits", **changes: Any) -> dict[str, Any]:
    return {
        "id": id_of(f"run {name}"),
        "federation_id": id_of("federation f"),
        "name": name,
        "status": "running",
        "reason": None,
        "version": 3,
        "created_at": AT,
        "ended_at": None,
        "round": 1,
        "rounds_planned": 10,
        "accuracy": None,
        "spec": {"name": name, "model": {"name": "mlp", "params": {}}},
        **changes,
    }


def cohort(**changes: Any) -> dict[str, Any]:
    return {
        "id": id_of("cohort"),
        "run_id": id_of("run digits"),
        "name": "all",
        "epoch": 0,
        "phase": "training",
        "round": 1,
        "head": None,
        "num_members": 3,
        "kind": "line",
        "parent_id": None,
        "group": "all",
        **changes,
    }


def checkpoint(name: str = "head", **changes: Any) -> dict[str, Any]:
    return {
        "id": id_of(f"checkpoint {name}"),
        "run_id": id_of("run digits"),
        "cohort_id": id_of("cohort"),
        "cohort": "all",
        "epoch": 0,
        "round": 1,
        "kind": "aggregate",
        "digest": DIGEST,
        "bytes": 4,
        "base_id": None,
        "created_at": AT,
        "metrics": {},
        "is_head": True,
        **changes,
    }


def lineage(**changes: Any) -> dict[str, Any]:
    return {
        "checkpoint": checkpoint(),
        "base": None,
        "scale": 1.0,
        "contributions": [],
        "ancestors": [],
        "clients": ["a"],
        **changes,
    }


def erasure(name: str = "r1", **changes: Any) -> dict[str, Any]:
    return {
        "id": id_of(f"erasure {name}"),
        "federation_id": id_of("federation f"),
        "status": "received",
        "reason": None,
        "version": 2,
        "subjects": ["b"],
        "scope": "client",
        "method": "auto",
        "chosen": None,
        "params": {},
        "guarantee": "exact",
        "regulation": "GDPR Art. 17",
        "requested_by": "admin",
        "recovery_rounds": None,
        "recovery": None,
        "fallback": None,
        "created_at": AT,
        "legal_deadline": "2026-01-31T00:00:00Z",
        "days_left": 29,
        "fenced_at": None,
        "first_clean_at": None,
        "completed_at": None,
        "duplicate_of": None,
        "lines": [],
        "exclusions": [],
        **changes,
    }


def ledger_entry(**changes: Any) -> dict[str, Any]:
    return {
        "id": id_of("entry"),
        "client_id": id_of("client a"),
        "client_name": "a",
        "job_id": id_of("run digits"),
        "run_id": id_of("run digits"),
        "period": 1,
        "round": 1,
        "kind": "reward",
        "amounts": {},
        "at": AT,
        **changes,
    }


def discovery(**changes: Any) -> dict[str, Any]:
    return {
        "scopes": ["client"],
        "methods": [],
        "recoveries": [],
        "public_key": "",
        "key_id": DIGEST,
        "legal_deadline_days": 30,
        **changes,
    }


def event(seq: int, type: str = "RoundOpened", **data: Any) -> dict[str, Any]:
    return {"seq": seq, "run_id": id_of("run digits"), "cohort_id": None, "at": AT, "type": type, "data": data}


def erasure_event(seq: int, status: str) -> dict[str, Any]:
    data = {"status": status, "reason": None}
    return {"seq": seq, "erasure_id": id_of("erasure r1"), "at": AT, "type": "ErasureMoved", "data": data}
