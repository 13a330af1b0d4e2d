"""What Prometheus and Grafana are given: figures of `/metrics`, and a board and alert rules that use no others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args
from uuid import uuid4

import promql_parser as promql
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from coordinator.api.metrics import State
from coordinator.engine.events import Event
from coordinator.runtime.quota import Usage
from coordinator.runtime.set_aside import WorkItem
from coordinator.store.access_queries import Figures
from services.core.errors import CODES
from services.wire.v1.erasure import ErasureStatus
from services.wire.v1.resources import RunStatus
from tests.integration.api.site import MODEL, Site, blob, opened

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
RULES: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "lethe.rules.yml").read_text("utf-8"))
BOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "dashboards" / "lethe.json").read_text("utf-8"))
OF_PROMETHEUS = {"up": {"job", "instance"}}
"""What Prometheus makes by itself, and the labels that it gives to everything."""
NOW = datetime(2026, 11, 18, tzinfo=UTC)
EVERYTHING = State(
    Figures(
        runs={"running": 1},
        open_tasks={"ready": 1},
        oldest_kernel_at=NOW,
        plain_blobs=0,
        jobs_set_aside={"kernel": 1},
        open_jobs={("kernel", "ready"): 1},
        open_rounds=1,
        erasures={"executing": 1},
        first_deadlines={"executing": NOW},
        certificates=1,
    ),
    Usage(stored_bytes=1, fullest_federation=0.5, fullest_client=0.5),
    NOW,
)


def rules() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def queries() -> list[str]:
    of_board = [target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", [])]
    return [*(rule["expr"] for rule in rules()), *of_board]


def parts(expression: Any) -> Iterator[Any]:
    """An expression of PromQL and all that it is made of."""
    yield expression
    for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
        if (part := getattr(expression, name, None)) is not None:
            yield from parts(part)
    for part in getattr(expression, "args", None) or ():
        yield from parts(part)


def selectors(query: str) -> list[Any]:
    return [part for part in parts(promql.parse(query)) if isinstance(part, promql.VectorSelector)]


def grouping(query: str) -> set[str]:
    """The labels that are aggregated by, or matched on."""
    names = re.findall(r"\b(?:by|on|ignoring|without) ?\(([^)]*)\)", query)
    return {label.strip() for group in names for label in group.split(",")} - {""}


def exposed_labels(text: str) -> dict[str, set[str]]:
    """The labels of each series."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.anyio
async def test_every_series_and_label_of_board_and_rules_is_exposed_by_a_coordinator(small_site: Site) -> None:
    (a,) = await small_site.enrol("a")
    await small_site.start_run()
    await a.claim()
    assert (await small_site.http.get("/v1/runs")).status_code == 401  # a refusal
    small_site.coordinator.set_aside.put(WorkItem("run", uuid4()), RuntimeError("broken"))
    live = (await small_site.http.get("/metrics")).text
    labels = exposed_labels(live) | OF_PROMETHEUS
    for name, known in exposed_labels(small_site.app.state.context.metrics.text(EVERYTHING).decode()).items():
        labels.setdefault(name, set()).update(known)
    for query in queries():
        used = selectors(query)
        assert used, query
        for selector in used:
            assert selector.name in labels, f"{selector.name} of {query}"
            matched = {matcher.name for matcher in selector.matchers.matchers}
            assert matched <= labels[selector.name], f"{query} matches {matched - labels[selector.name]}"
        assert grouping(query) <= set().union(*(labels[one.name] for one in used)), query


def test_values_that_labels_are_compared_with_can_occur() -> None:
    known = {
        ("lethe_erasures", "status"): set(get_args(ErasureStatus)),
        ("lethe_runs", "status"): set(get_args(RunStatus)),
        ("lethe_events_total", "type"): {event.__name__ for event in get_args(Event)},
        ("lethe_rejections_total", "code"): set(CODES),
        ("lethe_requests_total", "status"): {"500", "503"},
        ("lethe_blob_disk_bytes", "part"): {"total", "free"},
        ("up", "job"): {"lethe"},
    }
    for query in queries():
        for selector in selectors(query):
            for matcher in selector.matchers.matchers:
                if matcher.name == "route":
                    continue  # what is left out, not what is looked for
                values = known[selector.name, matcher.name]
                alternatives = matcher.value.split("|")
                assert all(any(re.fullmatch(one, value) for value in values) for one in alternatives), query


def test_a_rule_says_how_bad_it_is_what_happened_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule["alert"]
        assert rule["annotations"].keys() == {"summary", "description"}, rule["alert"]
        documented = re.findall(r"docs/([\w-]+\.md)", str(rule["annotations"]))
        assert all((ROOT / "docs" / page).is_file() for page in documented)


def test_panels_of_the_board_have_numbers_and_places_of_their_own() -> None:
    numbers = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + dx, at["y"] + dy) for dx in range(at["w"]) for dy in range(at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["targets"] and panel["datasource"]["uid"] == "${datasource}"


def test_what_prometheus_and_grafana_are_started_with_is_there() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]
    assert compose["prometheus"]["profiles"] == compose["grafana"]["profiles"] == ["observability"]
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text("utf-8"))
    assert all((DEPLOY / "prometheus" / name).is_file() for name in config["rule_files"])
    [scraped] = config["scrape_configs"]
    [found] = scraped["dns_sd_configs"]
    assert scraped["job_name"] == "lethe" and set(found["names"]) <= compose.keys() and found["port"] == 8440
    provisioning = DEPLOY / "grafana" / "provisioning"
    [source] = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text("utf-8"))["datasources"]
    assert source["url"] == "http://prometheus:9090"
    [provider] = yaml.safe_load((provisioning / "dashboards" / "lethe.yaml").read_text("utf-8"))["providers"]
    mounts = dict(volume.split(":")[:2] for volume in compose["grafana"]["volumes"])
    assert mounts["./grafana/dashboards"] == provider["options"]["path"]
    for place in mounts:
        assert not place.startswith(".") or (DEPLOY / place).is_dir()


@pytest.mark.anyio
async def test_every_metric_is_documented_with_its_own_sentence(small_site: Site) -> None:
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    documented = dict(re.findall(r"^\| `(lethe_\w+)(?:\{[\w, ]+\})?` \| (.+) \|$", page, re.MULTILINE))
    exposed = small_site.app.state.context.metrics.text(EVERYTHING).decode()
    help_of = {
        re.sub(r"_total$", "", name): said
        for name, said in re.findall(r"^# HELP (lethe_\w+) (.+)$", exposed, re.MULTILINE)
        if not name.endswith("_created")
    }
    assert {re.sub(r"_total$", "", name): said for name, said in documented.items()} == help_of


@pytest.mark.anyio
async def test_metrics_tell_of_requests_to_forget_and_of_their_deadlines(site: Site) -> None:
    await site.enrol("a", "b")
    await site.start_run()
    assert "lethe_erasure_deadline_timestamp_seconds{" not in (await site.http.get("/metrics")).text
    wanted = {"federation_id": site.federation_id, "subjects": ["a"], "needs_approval": True}
    filed = await site.admin.post("/v1/erasure-requests", wanted, expect=202, headers={"Idempotency-Key": "one"})
    text = (await site.http.get("/metrics")).text
    assert 'lethe_erasures{status="awaiting_approval"} 1.0' in text and "lethe_certificates 0.0" in text
    due = datetime.fromisoformat(filed["legal_deadline"]).timestamp()
    [told] = re.findall(r'lethe_erasure_deadline_timestamp_seconds\{status="awaiting_approval"\} (\S+)', text)
    assert float(told) == pytest.approx(due, abs=0.01)
    await site.admin.post(f"/v1/erasure-requests/{filed['id']}/deny", {"reason": "withdrawn"}, expect=200)
    text = (await site.http.get("/metrics")).text
    assert 'lethe_erasures{status="denied"} 1.0' in text
    assert "lethe_erasure_deadline_timestamp_seconds{" not in text, "a request that is over has no deadline"


@pytest.mark.anyio
async def test_metrics_tell_how_full_the_store_is(tmp_path: Path) -> None:
    size = len(blob(MODEL)[1])
    async with opened(tmp_path / "home", None, federation_quota_bytes=4 * size, client_quota_bytes=4 * size) as site:
        await site.enrol("a")
        empty = (await site.http.get("/metrics")).text
        assert "lethe_stored_bytes 0.0" in empty and 'lethe_quota_used_ratio{owner="federation"} 0.0' in empty
        await site.upload_model()
        full = (await site.http.get("/metrics")).text
        assert f"lethe_stored_bytes {float(size)}" in full
        assert 'lethe_quota_used_ratio{owner="federation"} 0.25' in full
        assert 'lethe_quota_used_ratio{owner="client"} 0.0' in full
        disk = exposed_labels(full)["lethe_blob_disk_bytes"]
        assert disk == {"part"}


@pytest.mark.anyio
async def test_a_quota_of_nothing_is_used_up(tmp_path: Path) -> None:
    async with opened(tmp_path / "home", None, client_quota_bytes=0) as site:
        told = (await site.http.get("/metrics")).text
    assert 'lethe_quota_used_ratio{owner="client"} 1.0' in told and "lethe_ready 1.0" in told
