"""What a worker did, what it sent and what it stores, gathered from the data holder's own disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from worker.cache import SUFFIX as MODEL_SUFFIX
from worker.journal import SUFFIX, Entry, entries
from worker.ledger import Ledger


@dataclass(frozen=True)
class Sent:
    """What was sent for one client in one run."""

    client: str
    coordinator: str
    run: str
    tasks: dict[str, int]
    """Accepted results, by kind of task."""
    updates: int
    update_bytes: int
    most_samples: int
    """The largest sample count that a result claimed."""
    figures: list[str]
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True)
class Stored:
    """What lies on this machine."""

    cache_dir: str
    num_models: int
    model_bytes: int
    ledger_dir: str
    samples_left_out: dict[str, int]
    """How many samples are never trained on again, by the client's id."""
    journal_bytes: int


@dataclass(frozen=True)
class Report:
    sent: list[Sent]
    stored: Stored


def gather(cache_dir: Path, ledger_dir: Path) -> Report:
    runs: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in entries(ledger_dir):
        runs.setdefault((entry.client, entry.coordinator, entry.run), []).append(entry)
    models = [path.stat().st_size for path in cache_dir.glob(f"*{MODEL_SUFFIX}")] if cache_dir.is_dir() else []
    ledgers = [path for path in sorted(ledger_dir.glob("*.jsonl")) if not path.name.endswith(SUFFIX)]
    return Report(
        sent=[_sent(found) for found in runs.values()],
        stored=Stored(
            cache_dir=str(cache_dir),
            num_models=len(models),
            model_bytes=sum(models),
            ledger_dir=str(ledger_dir),
            samples_left_out={path.stem: len(Ledger(path).samples) for path in ledgers},
            journal_bytes=sum(path.stat().st_size for path in ledger_dir.glob(f"*{SUFFIX}*")),
        ),
    )


def _sent(found: Sequence[Entry]) -> Sent:
    return Sent(
        client=found[0].client,
        coordinator=found[0].coordinator,
        run=found[0].run,
        tasks=dict(Counter(entry.kind for entry in found)),
        updates=sum(entry.update is not None for entry in found),
        update_bytes=sum(entry.update_bytes for entry in found),
        most_samples=max(entry.num_samples for entry in found),
        figures=sorted({name for entry in found for name in entry.figures}),
        first_at=min(entry.at for entry in found),
        last_at=max(entry.at for entry in found),
    )
