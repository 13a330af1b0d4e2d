"""The commands that show a run, workers, events and keys, against answers of a coordinator."""

from __future__ import annotations

import json
from typing import Any

from tests.support import samples
from tests.unit.cli.conftest import Server

ID = samples.id_of("anything")
RUN = samples.run()
AT = "2026-01-02T03:04:05Z"
COHORT = {
    "id": ID,
    "name": "root",
    "kind": "root",
    "parent_id": None,
    "group": "root",
    "epoch": 1,
    "round": 4,
    "phase": "asking",
    "num_members": 3,
    "members": [{"client_id": ID, "name": "hospital-a", "joined": False}],
    "members_left_off": 2,
    "head": None,
    "head_digest": None,
    "accuracy": None,
    "fences": [{"erasure_id": ID, "at": AT, "epoch": 1, "reinitialised": False}],
    "place": None,
}
LEAF = {**COHORT, "id": samples.id_of("leaf"), "parent_id": ID, "name": None, "members": [], "members_left_off": 0}
EVENT = {"seq": 7, "at": AT, "type": "RunCreated", "run_id": ID, "erasure_id": None, "cohort_id": None, "data": {}}


def serve(server: Server, path: str, answer: Any) -> None:
    server.answers[f"GET /v1/runs/{RUN['id']}"] = [(200, RUN)]
    server.answers[f"GET {path}"] = [(200, answer)]


def test_a_topology_is_printed_as_a_tree(server: Server, lethe: Any) -> None:
    found = {"run_id": RUN["id"], "kind": "tree", "version": 1, "cohorts": [COHORT, LEAF], "plane": None}
    serve(server, f"/v1/runs/{RUN['id']}/topology?members=5", found)
    code, out, _ = lethe("runs", "topology", RUN["id"])
    assert code == 0
    assert out.splitlines() == [
        "root  asking, epoch 1, round 4, fenced 1 times: hospital-a and 2 more",
        "  (erased)  asking, epoch 1, round 4, fenced 1 times: nobody",
    ]
    assert json.loads(lethe("runs", "topology", RUN["id"], "--json")[1]) == found


def test_series_are_printed_as_curves(server: Server, lethe: Any) -> None:
    points = [{"round": number, "at": AT, "value": number / 4, "epoch": 0} for number in range(1, 5)]
    one = {"name": "accuracy", "cohort_id": ID, "cohort_name": "all", "unit": "fraction", "total": 4, "points": points}
    found = {"run_id": RUN["id"], "metrics": [one], "fences": [], "cohorts_left_off": 0}
    serve(server, f"/v1/runs/{RUN['id']}/series?metric=accuracy&metric=loss&points=60", found)
    code, out, _ = lethe("runs", "series", RUN["id"], "-m", "accuracy", "-m", "loss")
    assert code == 0 and "▁▃▆█" in out and "0.25" in out


def test_a_grid_has_a_line_for_each_client(server: Server, lethe: Any) -> None:
    rows = [{"client_id": ID, "name": name, "cells": cells} for name, cells in (("a", ["d", "f"]), ("bee", ["-", "o"]))]
    codes = {"d": "done", "f": "failed"}
    found = {"rounds": [3, 4], "clients": rows, "codes": codes, "left_off": 9, "next_cursor": "x"}
    serve(server, f"/v1/runs/{RUN['id']}/grid?rounds_from=3&rounds_to=4&clients=100", found)
    code, out, err = lethe("runs", "grid", RUN["id"], "--from", "3", "--to", "4")
    assert code == 0 and out.splitlines() == ["a    df", "bee  -o"]
    assert "rounds 3 to 4" in err and "9 more clients" in err


def test_workers_are_listed_with_what_they_have_in_hand(server: Server, lethe: Any) -> None:
    task = {"task_id": ID, "run_id": ID, "kind": "train", "round": 3, "since": AT, "progress": 0.5}
    worker = {
        "client_id": ID,
        "client_name": "hospital-a",
        "status": "working",
        "last_seen_at": AT,
        "device": {"kind": "cuda", "name": "A100", "memory_mb": 0},
        "version": "0.2",
        "task_in_hand": task,
        "last_failure": None,
        "bytes_received": 12,
        "tasks_done": 3,
    }
    server.answers[f"GET /v1/federations/{ID}/workers?limit=200"] = [(200, {"items": [worker]})]
    code, out, _ = lethe("workers", "--federation", ID)
    assert code == 0 and "hospital-a" in out and "train 3 (50%)" in out and "A100" in out


def test_events_of_a_federation_are_printed_oldest_first(server: Server, lethe: Any) -> None:
    path = f"GET /v1/federations/{ID}/events?newest_first=true&limit=200"
    server.answers[path] = [(200, {"items": [{**EVENT, "seq": 8, "type": "RunEnded"}, EVENT]})]
    code, out, _ = lethe("events", "--federation", ID)
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == ["7", "8"]


def test_keys_are_listed_with_their_time(server: Server, lethe: Any) -> None:
    old = {"key_id": "one", "public_key": "PEM", "algorithm": "ed25519", "from": AT, "until": AT}
    server.answers["GET /v1/keys"] = [(200, [old, {**old, "key_id": "two", "until": None}])]  # type: ignore[list-item]
    code, out, _ = lethe("keys", "list", "--json")
    assert code == 0 and [json.loads(line)["key_id"] for line in out.splitlines()] == ["one", "two"]


def test_the_system_is_told_in_words_and_as_it_came_with_json(server: Server, lethe: Any) -> None:
    work = {"name": "clockwork", "state": "down", "since": AT, "reason": "the database cannot serve", "restarts": 2}
    found = {
        "version": "1.0",
        "started_at": AT,
        "database": {"kind": "sqlite", "revision": "0016", "ok": True},
        "redis": None,
        "blobs": {"kind": "file", "bytes": 1_500_000, "objects": 3},
        "storage_by_federation": [{"federation_id": ID, "bytes": 1_500_000, "quota_bytes": 2_000_000_000}],
        "queue": {"jobs_by_status": {"ready": 2}, "oldest_at": AT},
        "background": [work],
        "keys": {"signing_key_id": None},
    }
    server.answers["GET /v1/system"] = [(200, found)]
    code, out, _ = lethe("system")
    assert code == 0 and "{" not in out and "[" not in out
    for words in (
        *(
            "sqlite, schema 0016",
            "not used",
            "file, 3 objects, 1.5 MB",
            "2 ready, the oldest since 2026-01-02 03:04:05",
        ),
        *("clockwork", "the database cannot serve", "2.0 GB"),
    ):
        assert words in out
    assert json.loads(lethe("system", "--json")[1]) == found
