"""Events of incentives: how a federation divides its clients, and what they earn and pay."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.engine.entities import Federation, LedgerEntry, Period


@dataclass(frozen=True, slots=True)
class AllocationChanged:
    federation: Federation


@dataclass(frozen=True, slots=True)
class PeriodBegun:
    period: Period


@dataclass(frozen=True, slots=True)
class LedgerNoted:
    entries: tuple[LedgerEntry, ...]


IncentiveEvent = AllocationChanged | PeriodBegun | LedgerNoted
