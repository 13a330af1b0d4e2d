"""How shares evolve in the game about jobs, for `lethe incentives preview`: from a file or a coordinator's figures to
tables and a plot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_args
from uuid import UUID

import yaml
from pydantic import Field, ValidationError

from lethe.failures import UNUSABLE, CommandFailed
from lethe.periods import Setting
from lethe.run_file import describe
from services.incentive.division import Candidate, Division, Job, game_of, played, populations_of
from services.incentive.game import Course, Game, Shares, standing, total_utility
from services.incentive.spec import Amount, Incentives, Resources, Strategy
from services.wire.message import Message, Name

SHOWN: Final = (0, 10, 25, 50, 100, 200, 300, 500, 1000, 2000, 3000)
BARS: Final = "▁▂▃▄▅▆▇█"
WIDTH: Final = 60
"""Characters of a course in the terminal."""
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#888888")


class FileJob(Message):
    name: Name
    reward: Amount | None = Field(default=None, description="`incentives.pool` when absent.")


class FileClient(Resources):
    name: Name
    jobs: list[Name] | None = Field(default=None, description="Those that it may serve; all when absent.")


class GameFile(Message):
    """Jobs and clients that need not exist."""

    strategy: Strategy = "game"
    incentives: Incentives = Incentives()
    jobs: Annotated[list[FileJob], Field(max_length=100)]
    clients: Annotated[list[FileClient], Field(max_length=100_000)]


M = TypeVar("M", bound=Message)


def read_incentives(path: Path) -> Incentives:
    return _read(path, Incentives)


def _read(path: Path, kind: type[M]) -> M:
    try:
        return kind.model_validate(yaml.safe_load(path.read_text("utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CommandFailed(f"cannot read {path}: {error}", exit_code=UNUSABLE) from error
    except ValidationError as error:
        faults = "\n".join(f"       {describe(fault, kind)}" for fault in error.errors())
        step = "docs/methods/incentives.md has an example"
        raise CommandFailed(f"{path} cannot be used:\n{faults}", next_step=step, exit_code=UNUSABLE) from error


def from_file(path: Path, strategy: str | None = None) -> Setting:
    """`strategy`: in place of the file's."""
    found = _read(path, GameFile)
    if strategy is not None and strategy not in get_args(Strategy):
        raise CommandFailed(f"no strategy {strategy}; there are {', '.join(get_args(Strategy))}", exit_code=UNUSABLE)
    if strategy is not None:
        found = found.model_copy(update={"strategy": strategy})
    ids = {job.name: UUID(int=number) for number, job in enumerate(found.jobs, start=1)}
    if unknown := sorted({job for one in found.clients for job in one.jobs or ()} - ids.keys()):
        raise CommandFailed(f"{path}: there is no job {', '.join(unknown)}", exit_code=UNUSABLE)
    pool = found.incentives.pool
    jobs = tuple(Job(ids[job.name], job.name, pool if job.reward is None else job.reward) for job in found.jobs)
    clients = tuple(
        Candidate(
            one.name,
            tuple(ids[name] for name in ids if one.jobs is None or name in one.jobs),
            one.samples or 1,
            one.seconds or 0.0,
            one.bytes or 0,
            one.stored_bytes or 0,
        )
        for one in found.clients
    )
    return Setting(found.strategy, found.incentives, jobs, clients)


@dataclass(frozen=True)
class Played:
    """A period's division, and the course of shares that led there."""

    setting: Setting
    division: Division
    game: Game
    course: Course

    @property
    def moments(self) -> list[int]:
        last = self.course.num_periods
        return sorted({t for t in SHOWN if t <= last} | {last})

    def share_of(self, shares: Shares, job: int) -> float:
        """The part of all clients that serves a job."""
        sizes = self.game.sizes
        return sum(size * of_population[job] for size, of_population in zip(sizes, shares, strict=True)) / sum(sizes)

    def over_time(self) -> Iterator[dict[str, Any]]:
        for moment in self.moments:
            shares = self.course.shares[moment]
            by_job = {job.name: self.share_of(shares, j) for j, job in enumerate(self.setting.jobs)}
            yield {"period": moment, **by_job, "total utility": total_utility(self.game, shares)}

    def in_the_end(self) -> Iterator[dict[str, Any]]:
        for one, samples in zip(self.division.populations, self.game.samples, strict=True):
            row: dict[str, Any] = {"clients": len(one.clients), "samples": samples}
            for job, share, utility in zip(self.setting.jobs, one.shares, one.utilities, strict=True):
                row |= {f"{job.name}: share": share, f"{job.name}: utility": utility}
            yield row

    def verdict(self) -> str:
        if self.setting.strategy != "game":
            return f"{self.setting.strategy} settles nothing: its shares are the same in every period"
        found = standing(self.game, self.course.last)
        moved = found.speed * self.setting.incentives.learning_rate
        how = f"shares move by {moved:.1e} in a period, utilities differ by {found.spread:.2g} between the jobs that a "
        how += "population serves"
        if self.course.is_settled:
            return f"equilibrium after {self.course.num_periods} periods: {how}"
        return f"no equilibrium within {self.course.num_periods} periods: {how}"

    def served(self) -> Iterator[tuple[str, list[str]]]:
        for job in self.setting.jobs:
            yield job.name, [client for client, job_id in self.division.jobs.items() if job_id == job.id]

    def lines(self) -> Iterator[str]:
        """The course of each job's share, as bars."""
        width = max(len(job.name) for job in self.setting.jobs)
        num = self.course.num_periods
        places = [round(n * num / (WIDTH - 1)) for n in range(WIDTH)] if num else [0]
        for j, job in enumerate(self.setting.jobs):
            shares = [self.share_of(self.course.shares[t], j) for t in places]
            bars = "".join(BARS[min(len(BARS) - 1, int(share * len(BARS)))] for share in shares)
            yield f"{job.name:<{width}}  {bars}  {shares[-1]:.2f}"


def play(setting: Setting) -> Played:
    groups = populations_of(setting.clients, setting.incentives.populations)
    if not setting.jobs or not groups:
        raise CommandFailed(
            "there are no jobs that clients could be divided among",
            next_step="start a run or an erasure, or describe some in a file: docs/methods/incentives.md",
        )
    game, start = game_of(setting.jobs, groups, setting.incentives)
    division = setting.divided()
    if setting.strategy == "game":
        course = played(game, start, setting.incentives)
    else:
        course = Course((tuple(one.shares for one in division.populations),), is_settled=True)
    return Played(setting, division, game, course)


def draw(found: Played) -> str:
    """The shares over time as SVG."""
    wide, high, left, top = 640.0, 320.0, 50.0, 20.0
    last = max(1, found.course.num_periods)

    def point(moment: int, share: float) -> str:
        return f"{left + wide * moment / last:.1f},{top + high * (1 - share):.1f}"

    moments = sorted({round(n * found.course.num_periods / 400) for n in range(401)})
    drawn = [
        f'<rect x="{left}" y="{top}" width="{wide}" height="{high}" fill="none" stroke="#888"/>',
        *_axis(left, top, wide, high, last),
    ]
    for j, job in enumerate(found.setting.jobs):
        colour = COLOURS[j % len(COLOURS)]
        line = " ".join(point(t, found.share_of(found.course.shares[t], j)) for t in moments)
        drawn.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = top + 16 * (j + 1)
        drawn.append(f'<text x="{left + wide + 10}" y="{y}" fill="{colour}">{escape(job.name)}</text>')
    body = "\n".join(drawn)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + wide + 260:.0f}" height="{top + high + 50:.0f}" '
        f'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'
    )


def _axis(left: float, top: float, wide: float, high: float, last: int) -> Sequence[str]:
    below = top + high + 18
    return [
        *(f'<text x="{left - 8}" y="{top + high * (1 - s) + 4}" text-anchor="end">{s:g}</text>' for s in (0, 0.5, 1)),
        f'<text x="{left}" y="{below}">0</text>',
        f'<text x="{left + wide}" y="{below}" text-anchor="end">{last}</text>',
        f'<text x="{left + wide / 2}" y="{below + 14}" text-anchor="middle">period (share of clients by job)</text>',
    ]
