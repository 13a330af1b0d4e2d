"""Recompute published models from the updates they were made of, and compare digests.

Every file is hashed before it is used, so a changed byte in a stored update is told apart from a false lineage. A step
whose inputs are no longer kept is *missing*: it shows nothing, for or against. A replay of nothing never passes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Final, Literal

from services.audit.predicate import extent_of
from services.core.errors import Rejected
from services.tensors.aggregate import weighted_step
from services.tensors.errors import KernelFailed
from services.tensors.merge import merge_models, stack_models
from services.tensors.streams import Stored, Writable
from services.wire.v1.resources import Lineage

_READ_BYTES: Final = 2**20

Fetch = Callable[[str], Stored]
"""The bytes of a digest. Raises FileNotFoundError when they are not kept."""


@dataclass(frozen=True, slots=True)
class AggregateStep:
    """`result` = `base` + `scale` * weighted mean of the `updates`, (digest, weight) in the order they were added."""

    result: str
    base: str
    scale: float
    updates: tuple[tuple[str, float], ...]
    quantum: float | None = None
    """Set when every number was then rounded to a multiple of it."""
    factors: tuple[float | None, ...] = ()
    """The factor by which each update was scaled down; empty: all were added as they came."""

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.base, *(digest for digest, _ in self.updates))))


@dataclass(frozen=True, slots=True)
class MergeStep:
    """`result` = weighted average of the `models`, (digest, weight) in the order they were added: also how a cohort is
    re-initialised."""

    result: str
    models: tuple[tuple[str, float], ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(digest for digest, _ in self.models))


@dataclass(frozen=True, slots=True)
class StackStep:
    """`result` = the `models` side by side along a new first axis: an ensemble."""

    result: str
    models: tuple[str, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.models))


@dataclass(frozen=True, slots=True)
class CopyStep:
    """`result` is the `model` itself: the best of several, the only one, or one that a round added nothing to."""

    result: str
    model: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.model,)


Step = AggregateStep | MergeStep | StackStep | CopyStep


@dataclass(frozen=True, slots=True)
class Replayed:
    result: str


@dataclass(frozen=True, slots=True)
class Missing:
    result: str
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    result: str
    reason: str


Outcome = Replayed | Missing | Failed


@dataclass(frozen=True, slots=True)
class ReplayReport:
    reproduced: tuple[str, ...]
    """Digests of the models that came out again, byte for byte."""
    total: int
    failures: tuple[Failed, ...]
    missing: tuple[Missing, ...]

    @property
    def replayed(self) -> int:
        return len(self.reproduced)

    @property
    def verdict(self) -> Literal["full", "partial", "none"]:
        return extent_of(self.replayed, self.total)

    @property
    def passed(self) -> bool:
        return self.replayed > 0 and not self.failures


def step_of(lineage: Lineage) -> Step | None:
    """None for an initial model, which was made from a seed, and for one that a method made of what is purged."""
    result, models = lineage.checkpoint.digest, tuple((parent.digest, parent.weight) for parent in lineage.parents)
    if lineage.checkpoint.kind in ("init", "forgotten"):
        return None
    if lineage.base is not None and not lineage.contributions:  # nobody answered, or nothing within its bounds
        return CopyStep(result, lineage.base.digest)
    if lineage.base is not None:
        updates = tuple((contribution.digest, contribution.weight) for contribution in lineage.contributions)
        factors = tuple(contribution.factor for contribution in lineage.contributions)
        factors = factors if any(factor is not None for factor in factors) else ()
        return AggregateStep(result, lineage.base.digest, lineage.scale, updates, lineage.quantum, factors)
    match lineage.made_by:
        case "stack":
            return StackStep(result, tuple(digest for digest, _ in models))
        case "copy" if len(models) == 1:
            return CopyStep(result, models[0][0])
        case _:
            return MergeStep(result, models)


def replay(
    steps: Iterable[Step], fetch: Fetch, after_each: Callable[[Outcome], None] = lambda outcome: None
) -> ReplayReport:
    """`after_each` hears of every step; the files that were fetched for it are not needed any more."""
    outcomes: list[Outcome] = []
    for step in steps:
        outcomes.append(replay_step(step, fetch))
        after_each(outcomes[-1])
    return ReplayReport(
        reproduced=tuple(outcome.result for outcome in outcomes if isinstance(outcome, Replayed)),
        total=len(outcomes),
        failures=tuple(outcome for outcome in outcomes if isinstance(outcome, Failed)),
        missing=tuple(outcome for outcome in outcomes if isinstance(outcome, Missing)),
    )


def replay_step(step: Step, fetch: Fetch) -> Outcome:
    files, missing = _fetch_all(step.inputs, fetch)
    for digest, stored in files.items():
        if (actual := _digest_of(stored)) != digest:
            return Failed(step.result, f"the stored bytes of {digest} have changed: their digest is {actual}")
    if missing:
        return Missing(step.result, tuple(missing))
    out = _Hashed()
    try:
        _recompute(step, files, out)
    except (KernelFailed, Rejected) as error:
        return Failed(step.result, f"nothing can be computed from the recorded inputs: {error}")
    if out.digest != step.result:
        return Failed(step.result, f"the recorded inputs give another model: {out.digest}")
    return Replayed(step.result)


def _fetch_all(digests: Iterable[str], fetch: Fetch) -> tuple[dict[str, Stored], list[str]]:
    files, missing = {}, []
    for digest in digests:
        try:
            files[digest] = fetch(digest)
        except FileNotFoundError:
            missing.append(digest)
    return files, missing


def _recompute(step: Step, files: dict[str, Stored], out: Writable) -> None:
    match step:
        case AggregateStep():
            factors = step.factors or (None,) * len(step.updates)
            updates = [
                {"digest": digest, "weight": weight, "factor": factor}
                for (digest, weight), factor in zip(step.updates, factors, strict=True)
            ]
            params = {"base": step.base, "updates": updates, "scale": step.scale, "quantum": step.quantum}
            weighted_step(params, files, out)
        case MergeStep():
            models = [{"digest": digest, "weight": weight} for digest, weight in step.models]
            merge_models({"models": models}, files, out)
        case StackStep():
            stack_models({"models": [{"digest": digest} for digest in step.models]}, files, out)
        case CopyStep():
            _copy(files[step.model], out)


class _Hashed:
    """A writer that keeps only the digest of what is written."""

    def __init__(self) -> None:
        self.restart()

    def write(self, data: bytes | memoryview) -> None:
        self._sha256.update(data)

    def restart(self) -> None:
        self._sha256 = hashlib.sha256()

    @property
    def digest(self) -> str:
        return f"sha256:{self._sha256.hexdigest()}"


def _digest_of(stored: Stored) -> str:
    out = _Hashed()
    _copy(stored, out)
    return out.digest


def _copy(stored: Stored, out: Writable) -> None:
    buffer = memoryview(bytearray(_READ_BYTES))
    with closing(stored.open()) as file:
        for start in range(0, file.num_bytes, _READ_BYTES):
            piece = buffer[: file.num_bytes - start]
            file.read_into(piece, start)
            out.write(piece)
