"""`simulate`: plays a scenario. The clock moves only when nobody has anything to do at the present instant."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog

from coordinator.engine import events as e
from coordinator.engine.entities import ENDED, Run
from coordinator.engine.messages import CreateRun
from coordinator.store import accounts, experiment_queries
from coordinator.store.inbox import InboxKey
from lethe.failures import UNUSABLE, CommandFailed
from lethe.simulation.agents import Agents
from lethe.simulation.client_data import ClientData, OwnTaskData
from lethe.simulation.clock import BEGINNING, virtual_s
from lethe.simulation.coordinator import SimulatedCoordinator, run_to_end
from lethe.simulation.result_rows import results_of
from lethe.simulation.results import Results
from lethe.simulation.scenario import Scenario, client_name
from lethe.simulation.script import PRINCIPAL, Script
from lethe.simulation.training import Trainer, several
from services.core import digests
from services.core.errors import Rejected
from services.core.ids import uuid7
from services.core.model_figures import accuracy_of
from services.data.data_folders import folders_of
from services.data.dataset import Array
from services.models.spec import CUSTOM
from services.simulation.event_queue import EventQueue
from services.tensors import codec
from services.tensors.streams import StoredFile
from services.wire.v1.resources import FederationCreate
from worker.execution import describe

RESULTS: Final = "results.jsonl"
SCENARIO: Final = "scenario.json"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a simulation is, after a published model."""

    virtual_s: float
    cohort: str
    epoch: int
    round: int
    rounds_planned: int
    accuracy: float | None
    served: float | None
    """The best of the top-level lines."""
    client_updates: int
    """So far in this process."""
    wall_s: float


Watch = Callable[[Progress], bool | None]
"""Told of every published model; True ends the simulation."""


def simulate(
    scenario: Scenario,
    out_dir: Path | None = None,
    progress: Watch | None = None,
    *,
    folders: Sequence[Path] | None = None,
) -> Results:
    """Play a scenario to its end. Raises CommandFailed when it cannot be played.

    `out_dir` keeps the database, the models and `results.jsonl`; a simulation that was killed goes on there. `folders`:
    where data files are looked for, those of LETHE_DATA when absent.
    """
    import torch

    started = time.monotonic()
    torch.set_num_threads(1)  # with more, sums depend on how many
    with ExitStack() as stack:
        stack.enter_context(_quiet_unless_configured())
        if out_dir is None:
            out_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lethe-simulation-")))
        _claim_directory(out_dir, scenario)
        scratch = out_dir / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        places = folders_of(os.environ) if folders is None else folders
        data = ClientData(scenario, places) if scenario.task is None else OwnTaskData(scenario, places)
        _check_fit(data, scenario)
        trainer = Trainer(data, scratch, out_dir / "kept")
        pool: Executor | None = None
        if scenario.processes > 1:
            pool = stack.enter_context(several(trainer, scenario.processes))
        results = run_to_end(_Simulation(scenario, out_dir, trainer, pool, progress, started).play())
        results.write(out_dir / RESULTS)
    return replace(results, wall_s=time.monotonic() - started, training_s=trainer.busy_s)


@contextmanager
def _quiet_unless_configured() -> Iterator[None]:
    """The real coordinator logs each step that it takes. Who simulates wants results: only warnings are shown, on
    standard error, unless the caller has configured structlog."""
    if structlog.is_configured():
        yield
        return
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        yield
    finally:
        structlog.reset_defaults()


def _claim_directory(out_dir: Path, scenario: Scenario) -> None:
    """How many processes compute is not part of what is computed."""
    out_dir.mkdir(parents=True, exist_ok=True)
    file, text = out_dir / SCENARIO, scenario.model_dump_json(indent=1, exclude={"processes"})
    if file.exists() and file.read_text("utf-8") != text:
        raise CommandFailed(
            f"{out_dir} belongs to another scenario, or to another version of this one",
            next_step="choose another directory, or delete it",
            exit_code=UNUSABLE,
        )
    file.write_text(text, "utf-8")


def _check_fit(data: ClientData | OwnTaskData, scenario: Scenario) -> None:
    try:
        data.task_of(client_name(0)).model(scenario.run.model)
    except Rejected as rejected:
        raise CommandFailed(f"run.model: {rejected.detail}", exit_code=UNUSABLE) from rejected
    except Exception as error:
        if scenario.task is None:
            raise
        fault = f"{scenario.task}: its model() raised {type(error).__name__}: {error}"
        raise CommandFailed(fault, exit_code=UNUSABLE) from error


class _Simulation:
    def __init__(
        self,
        scenario: Scenario,
        home: Path,
        trainer: Trainer,
        pool: Executor | None,
        watch: Watch | None,
        started: float,
    ) -> None:
        self._scenario, self._trainer, self._watch, self._started = scenario, trainer, watch, started
        self._home = home
        self._coordinator = SimulatedCoordinator(home, scenario.seed)
        self._event_queue: EventQueue[str] = EventQueue()
        self._agents = Agents(self._coordinator, scenario, trainer, pool, self._event_queue)
        self._script = Script(self._coordinator, scenario, self._event_queue)
        self._published: list[e.CheckpointPublished] = []
        self._num_updates = 0
        self._run: Run | None = None
        """The run as it was when its status last changed."""
        self._may_be_due = True
        """Whether a row may be due later; the event queue does not have those."""
        self._cohorts: dict[str, str] = {}
        self._coordinator.observers.append(self._notice)

    async def play(self) -> Results:
        try:
            await self._begin()
            stopped = await self._play()
            return await results_of(self._coordinator, stopped)
        finally:
            await self._coordinator.close()

    async def _begin(self) -> None:
        """Everything here may have happened before, in whole or in part."""
        coordinator, scenario = self._coordinator, self._scenario
        await coordinator.open()
        self._event_queue.advance(coordinator.clock.now_s)
        async with coordinator.database.write() as connection:
            if not await accounts.has_federation(connection, coordinator.federation_id):
                wanted = FederationCreate(
                    name=scenario.name, allocation=scenario.allocation, incentives=scenario.incentives
                )
                await accounts.add_federation(connection, coordinator.federation_id, wanted, coordinator.clock())
        await coordinator.enrol(scenario.names[: scenario.clients])
        async with coordinator.database.read() as connection:
            run = await experiment_queries.run(connection)
        if run is None:
            await self._create_run()
        else:
            await coordinator.enrol(await self._joined())
        await self._script.resume()
        await self._agents.resume()

    async def _joined(self) -> list[str]:
        """Newcomers of an earlier life."""
        async with self._coordinator.database.read() as connection:
            names = self._scenario.names[self._scenario.clients :]
            return sorted(await accounts.client_ids(connection, self._coordinator.federation_id, names))

    async def _create_run(self) -> None:
        coordinator, spec = self._coordinator, self._scenario.run
        validation = spec.validation.model_copy(update={"data": await self._take_in_test_set()})
        newcomers = any(event.join for event in self._scenario.script)
        clients = self._scenario.names[: self._scenario.clients] if newcomers else None
        init = await self._take_in_init() or spec.init
        for path in self._scenario.uploads:
            await self._take_in(codec.read(StoredFile(Path(path))))
        spec = spec.model_copy(update={"validation": validation, "clients": clients, "init": init})
        run_id = uuid7(BEGINNING, coordinator.entropy.draw("run"))
        inbox_key = InboxKey(PRINCIPAL, "run", "run", digests.of_json(spec.model_dump(mode="json")), run_id)
        try:
            await coordinator.shell.handle_once(CreateRun(run_id, coordinator.federation_id, spec), inbox_key)
        except Rejected as rejected:
            raise CommandFailed(f"the run was refused: {rejected.detail}", exit_code=UNUSABLE) from rejected

    async def _take_in_test_set(self) -> str | None:
        arrays = self._trainer.data.test_set()
        return await self._take_in(arrays) if arrays else None

    async def _take_in_init(self) -> str | None:
        """The first weights of a model that the coordinator does not know."""
        from services.models.weights import to_array

        data = self._trainer.data
        if self._scenario.run.model.name != CUSTOM or not isinstance(data, OwnTaskData):
            return None
        return await self._take_in({name: to_array(tensor) for name, tensor in data.initial_weights().items()})

    async def _take_in(self, arrays: dict[str, Array]) -> str:
        path = self._home / "scratch" / "taken-in.safetensors"
        codec.write_file(path, arrays)
        described = describe(path)
        await self._coordinator.receive(described)
        return described.digest

    def _notice(self, event: e.Event) -> None:
        match event:
            case e.CheckpointPublished():
                self._published.append(event)
            case e.UpdateAccepted():
                self._num_updates += 1
            case e.RunEnded() | e.RunReopened() | e.RunPaused() | e.RunResumed():
                self._run = None
            case e.TaskReleased() | e.JobReturned() | e.RoundOpened():
                self._may_be_due = True

    # the loop

    async def _play(self) -> str | None:
        """Play until everything is done; returns why it stopped before, if it did."""
        await self._finish_due()
        await self._look()
        while True:
            run = await self._settle()
            if stop := await self._should_stop():
                return stop
            if await self._is_over(run):
                return None
            await self._agents.begin_all()
            instant = await self._next_instant()
            if instant is None:
                if await self._look():
                    continue
                return self._script.what_never_came()
            if (limit := self._scenario.stop.virtual_s) is not None and instant > limit:
                return f"stop.virtual_s {limit:g} is reached"
            await self._move_to(instant)

    async def _settle(self) -> Run:
        """Everything that happens at this instant: the coordinator's work, then the script, then claims."""
        while True:
            rung = await self._coordinator.turn()
            if rung is not None:
                self._agents.ring(self._coordinator.names[client_id] for client_id in rung)
                continue
            run = await self._the_run()
            if not await self._script.play(run) and not await self._agents.claim():
                return run

    async def _the_run(self) -> Run:
        if self._run is None:
            async with self._coordinator.database.read() as connection:
                self._run = await experiment_queries.run(connection)
        if self._run is None:
            raise CommandFailed("the run is gone from the simulation's database")
        return self._run

    async def _look(self) -> bool:
        """Look for work without having been rung for; whether there is any."""
        await self._coordinator.tick()
        async with self._coordinator.database.read() as connection:
            names = await experiment_queries.clients_with_work(connection, self._coordinator.clock())
        self._agents.ring(names)
        return bool(names) or self._coordinator.bus.has_rung

    async def _next_instant(self) -> float | None:
        planned = self._event_queue.next_instant()
        if not self._may_be_due:
            return planned
        async with self._coordinator.database.read() as connection:
            due = await experiment_queries.next_due(connection, self._coordinator.clock())
        self._may_be_due = due is not None
        instants = [instant for instant in (planned, None if due is None else virtual_s(due)) if instant is not None]
        return min(instants, default=None)

    async def _move_to(self, instant: float) -> None:
        self._coordinator.clock.move_to(instant)
        planned = self._event_queue.next_instant()
        if planned is None or planned > instant:
            self._event_queue.advance(instant)
            await self._look()
        await self._finish_due()

    async def _finish_due(self) -> None:
        """Whatever the event queue has for this instant."""
        ended = []
        while self._event_queue.next_instant() == self._coordinator.clock.now_s:
            key, kind = self._event_queue.pop()
            name = key.removeprefix(f"{kind}/")
            match kind:
                case "script":
                    self._script.call(name)
                case "lease":
                    await self._agents.renew(name)
                case _:
                    ended.append(name)
        if ended:
            await self._agents.finish(ended)

    # the end

    async def _is_over(self, run: Run) -> bool:
        if run.status not in ENDED or self._script.pending:
            return False
        async with self._coordinator.database.read() as connection:
            return not await experiment_queries.open_erasures(connection)

    async def _should_stop(self) -> str | None:
        published, self._published = self._published, []
        if not published:
            return None
        async with self._coordinator.database.read() as connection:
            accuracies, losses = await experiment_queries.served_figures(connection)
        if not self._script.pending and (why := self._scenario.stop.why(accuracies, losses)) is not None:
            return why
        for one in published:
            if self._watch is not None and self._watch(await self._progress(one, max(accuracies, default=None))):
                return "the caller ended it"
        return None

    async def _progress(self, one: e.CheckpointPublished, served: float | None) -> Progress:
        checkpoint = one.checkpoint
        if str(checkpoint.cohort_id) not in self._cohorts:
            async with self._coordinator.database.read() as connection:
                self._cohorts = {str(cohort.id): cohort.name for cohort in await experiment_queries.cohorts(connection)}
        return Progress(
            virtual_s=virtual_s(checkpoint.created_at),
            cohort=self._cohorts[str(checkpoint.cohort_id)],
            epoch=checkpoint.epoch,
            round=checkpoint.round,
            rounds_planned=self._scenario.run.stop.rounds,
            accuracy=accuracy_of(checkpoint.metrics),
            served=served,
            client_updates=self._num_updates,
            wall_s=time.monotonic() - self._started,
        )
