"""What `/metrics` tells Prometheus. Each app has a registry of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator.engine.events import Event
from coordinator.runtime.quota import Usage
from coordinator.runtime.set_aside import SetAside
from coordinator.runtime.supervision import Supervisor
from coordinator.store.access_queries import Figures

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class DiskUsage(Protocol):
    @property
    def total(self) -> int: ...
    @property
    def free(self) -> int: ...


@dataclass(frozen=True, slots=True)
class State:
    """What the database tells of the whole installation."""

    figures: Figures
    usage: Usage
    now: datetime


class Metrics:
    def __init__(self, supervisor: Supervisor, set_aside: SetAside) -> None:
        self.registry = registry = CollectorRegistry()
        registry.register(_Background(supervisor, set_aside))
        requests = Counter("lethe_requests", "Answers.", ["route", "status"], registry=registry)
        seconds = Histogram(
            "lethe_request_seconds", "Time to the answer's end.", ["route"], buckets=_SECONDS, registry=registry
        )
        self._requests_of = cache(requests.labels)  # finding a label again costs more than counting
        self._seconds_of = cache(seconds.labels)
        self.rejections = Counter("lethe_rejections", "Refused requests by problem code.", ["code"], registry=registry)
        events = Counter("lethe_events", "What the engine decided, by type.", ["type"], registry=registry)
        self._events_of = cache(events.labels)
        self.waiting_polls = Gauge("lethe_waiting_polls", "Long polls that wait for work.", registry=registry)
        self.uploads = Gauge("lethe_uploads_in_flight", "Blobs being received.", registry=registry)
        self._bytes_in = Counter("lethe_bytes_in", "Bytes of request bodies.", registry=registry)
        self._bytes_out = Counter("lethe_bytes_out", "Bytes of answers.", registry=registry)
        self._runs = Gauge("lethe_runs", "Runs by status.", ["status"], registry=registry)
        self._open_tasks = Gauge("lethe_open_tasks", "Unfinished tasks by status.", ["status"], registry=registry)
        self._oldest_kernel = Gauge("lethe_oldest_kernel_seconds", "Age of the oldest open kernel.", registry=registry)
        self._jobs_set_aside = Gauge(
            "lethe_jobs_set_aside", "Jobs that broke and wait for another attempt.", ["kind"], registry=registry
        )
        self._plain_blobs = Gauge(
            "lethe_plain_blobs", "Blobs of an earlier version that are not sealed yet.", registry=registry
        )
        self._open_jobs = Gauge(
            "lethe_open_jobs", "Unfinished jobs by kind and status.", ["kind", "status"], registry=registry
        )
        self._open_rounds = Gauge("lethe_open_rounds", "Rounds that go on.", registry=registry)
        self._erasures = Gauge("lethe_erasures", "Requests to forget by status.", ["status"], registry=registry)
        self._first_deadlines = Gauge(
            "lethe_erasure_deadline_timestamp_seconds",
            "The earliest legal deadline of requests that are not over, by status.",
            ["status"],
            registry=registry,
        )
        self._certificates = Gauge("lethe_certificates", "Certificates that were issued.", registry=registry)
        self._stored = Gauge("lethe_stored_bytes", "Bytes that all federations store.", registry=registry)
        self._quota_used = Gauge(
            "lethe_quota_used_ratio",
            "Of whoever is nearest to its quota, the share taken.",
            ["owner"],
            registry=registry,
        )
        self._disk = Gauge(
            "lethe_blob_disk_bytes", "The disk of blobs, if they are files.", ["part"], registry=registry
        )
        self._is_ready = Gauge("lethe_ready", "Whether the database answers.", registry=registry)

    def observe(self, event: Event) -> None:
        self._events_of(type(event).__name__).inc()

    def answered(self, route: str, status: int, elapsed_s: float, bytes_in: int, bytes_out: int) -> None:
        self._requests_of(route, str(status)).inc()
        self._seconds_of(route).observe(elapsed_s)
        if bytes_in:
            self._bytes_in.inc(bytes_in)
        self._bytes_out.inc(bytes_out)

    def text(self, state: State | None) -> bytes:
        """The exposition. Without a state, because the database is away, only what this process knows."""
        by_label = (
            self._runs,
            self._open_tasks,
            self._jobs_set_aside,
            self._open_jobs,
            self._erasures,
            self._first_deadlines,
            self._quota_used,
        )
        for gauge in by_label:
            gauge.clear()
        self._is_ready.set(state is not None)
        if state is not None:
            self._set_figures(state.figures, state.now)
            self._stored.set(state.usage.stored_bytes)
            self._quota_used.labels("federation").set(state.usage.fullest_federation)
            self._quota_used.labels("client").set(state.usage.fullest_client)
        return generate_latest(self.registry)

    def set_disk(self, disk: DiskUsage | None) -> None:
        self._disk.clear()
        if disk is not None:
            self._disk.labels("total").set(disk.total)
            self._disk.labels("free").set(disk.free)

    def _set_figures(self, figures: Figures, now: datetime) -> None:
        counts = (
            (self._runs, figures.runs),
            (self._open_tasks, figures.open_tasks),
            (self._jobs_set_aside, figures.jobs_set_aside),
            (self._erasures, figures.erasures),
        )
        for gauge, by_label in counts:
            for label, count in by_label.items():
                gauge.labels(label).set(count)
        for (kind, status), count in figures.open_jobs.items():
            self._open_jobs.labels(kind, status).set(count)
        for status, deadline in figures.first_deadlines.items():
            self._first_deadlines.labels(status).set(deadline.timestamp())
        self._open_rounds.set(figures.open_rounds)
        self._certificates.set(figures.certificates)
        self._plain_blobs.set(figures.plain_blobs)
        oldest = figures.oldest_kernel_at
        self._oldest_kernel.set((now - oldest).total_seconds() if oldest is not None else 0)


class _Background(Collector):
    """Read when it is asked for: the work itself knows nothing of metrics."""

    def __init__(self, supervisor: Supervisor, set_aside: SetAside) -> None:
        self._supervisor, self._set_aside = supervisor, set_aside

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("lethe_background_up", "Whether background work goes on.", labels=["task"])
        restarts = CounterMetricFamily("lethe_background_restarts", "Deaths of background work.", labels=["task"])
        for name, health in self._supervisor.health.items():
            up.add_metric([name], health.problem is None)
            restarts.add_metric([name], health.num_restarts)
        now = GaugeMetricFamily("lethe_set_aside_now", "What this process has set aside.", labels=["kind"])
        ever = CounterMetricFamily("lethe_set_aside", "How often something was set aside.", labels=["kind"])
        for kind, count in self._set_aside.totals.items():
            now.add_metric([kind], self._set_aside.counts()[kind])
            ever.add_metric([kind], count)
        yield from (up, restarts, now, ever)
