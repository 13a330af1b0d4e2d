"""Programs carried out for real in one process: kernels over files, clients in torch. No engine, no faults, no clock.

It answers the programs' steps as the contract says, so that a test can see what a method does to a model.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import torch
from torch import nn

from services.core.seeds import derive
from services.data.sources import Dataset
from services.methods.running import program_named
from services.models.build import build
from services.models.weights import load_weights
from services.program.contract import (
    Abort,
    AskClients,
    CohortView,
    Collected,
    Compute,
    Computed,
    Erasure,
    Finish,
    Movement,
    Participant,
    Publish,
    Published,
    Recall,
    Recalled,
    UpdateRef,
)
from services.tensors.streams import StoredFile
from services.training import local
from services.training.local_spec import LocalTraining
from services.training.task import Classifier
from services.unlearning.fedforget.client import distil, taught
from services.unlearning.fedforget.spec import Distil
from services.unlearning.pga.client import ascend
from services.unlearning.pga.spec import Ascend
from services.wire.v1.runs import RunSpec
from services.wire.v1.work import Work
from tests.support.kernels import run_over_files

CPU = torch.device("cpu")


@dataclass
class SmallFederation:
    folder: Path
    spec: RunSpec
    data: dict[str, Dataset]
    members: set[str] = field(default_factory=set)
    models: dict[int, str] = field(default_factory=dict)
    """Published models by round."""
    history: dict[int, tuple[UpdateRef, ...]] = field(default_factory=dict)
    movements: list[Movement] = field(default_factory=list)
    residuals: str | None = None
    client_epochs: int = 0
    _num_answers: int = 0

    def __post_init__(self) -> None:
        self.members = set(self.data)

    def run(self, program: str, view: CohortView) -> str:
        plan = program_named(program)
        state, step = plan.start(view)
        while not isinstance(step, Finish | Abort):
            outcome: Any
            match step:
                case Compute(kernel=kernel, params=params, inputs=inputs):
                    outcome = self.compute(kernel, dict(params), inputs)
                case AskClients():
                    outcome = Collected(self.answers(step))
                    if program == "fedavg":
                        self.note_round(step, outcome.updates)
                case Recall(round=past):
                    outcome = Recalled(tuple(u for u in self.history[past] if u.client in self.members))
                case Publish(digest=digest, round=round):
                    self.models[round] = digest
                    outcome = Published()
                case _:
                    raise AssertionError(f"unexpected {step}")
            state, step = plan.resume(plan.state_type.model_validate_json(state.model_dump_json()), outcome, view)
        if isinstance(step, Abort):
            raise AssertionError(step.reason)
        return step.reason

    def train(self, rounds: int) -> None:
        newest = max(self.models, default=0)
        spec = self.spec.model_copy(update={"stop": self.spec.stop.model_copy(update={"rounds": newest + rounds})})
        self.run("fedavg", self.view(spec, self.models.get(newest), newest))

    def forget(self, leaver: str, method: str, recovery: int, **params: Any) -> str:
        """The name of each round is kept; models of the fenced line that the method does not publish again go."""
        round = max(self.models)
        fenced, last = dict(self.models), self.history[round]
        total = sum(update.num_samples for update in last)
        erasure = Erasure(
            leavers=(leaver,),
            params=params,
            seed=3,
            initial=fenced[0],
            head=fenced[round],
            round=round,
            base=fenced[round - 1],
            participants=tuple(Participant(u.client, u.digest, u.num_samples / total) for u in last),
            history=tuple(sorted(self.history)),
            residuals=self.residuals,
            movements=tuple(m for m in self.movements if m.client == leaver),
            checkpoints=fenced,
        )
        self.members.remove(leaver)
        self.models = {}
        self.client_epochs = 0
        reason = self.run(method, replace(self.view(self.spec, None, 0), erasure=erasure))
        self.train(max(0, round - max(self.models)) + recovery)
        return reason

    def view(self, spec: RunSpec, head: str | None, round: int) -> CohortView:
        return CohortView("all", len(self.members), len(self.data), spec, head, round)

    def compute(self, kernel: str, params: dict[str, Any], inputs: tuple[str, ...]) -> Computed:
        out = self.folder / "out"
        figures = run_over_files(kernel, params, {digest: self.path(digest) for digest in inputs}, out)
        return Computed(self.store(out) if out.exists() else None, figures)

    def answers(self, ask: AskClients) -> tuple[UpdateRef, ...]:
        asked: list[tuple[str, Work | None]] = [(name, None) for name in (ask.clients or sorted(self.members))]
        asked = asked[: ask.num_clients] + [(task.client, task.work) for task in ask.leavers]
        return tuple(self.answer(name, work, ask) for name, work in sorted(asked, key=lambda pair: pair[0]))

    def answer(self, name: str, work: Work | None, ask: AskClients) -> UpdateRef:
        task, model = Classifier(self.data[name]), self.model(ask.model)
        before, seed = local.snapshot(model), derive(self.spec.seed, ask.round, name)
        match work:
            case Ascend():
                metrics = ascend(task, model, work, seed, CPU)
            case Distil():
                teacher_b = None if work.teacher_b is None else self.model(work.teacher_b)
                lesson = taught(task, self.model(work.teacher_a), teacher_b, work, CPU)
                metrics = distil(lesson, model, work.local, seed, CPU)
                self.client_epochs += work.local.epochs
            case _:
                training: LocalTraining = ask.local or self.spec.local
                metrics = local.train(task, model, training, seed, CPU)
                self.client_epochs += training.epochs
        path = self.folder / "update"
        local.write_update(path, local.delta(before, model.state_dict()))
        self._num_answers += 1
        return UpdateRef(UUID(int=self._num_answers), name, self.store(path), task.num_train, ask.round - 1, metrics)

    def note_round(self, ask: AskClients, updates: tuple[UpdateRef, ...]) -> None:
        """What a run with history, residuals and distances keeps."""
        self.history[ask.round] = updates
        listed = [{"client": u.client, "digest": u.digest, "weight": float(u.num_samples)} for u in updates]
        inputs = (ask.model, *(u.digest for u in updates if u.digest is not None))
        params = {"model": ask.model, "updates": listed, "scale": 1.0}
        total = sum(u.num_samples for u in updates)
        distances = self.compute("measure_distances", params, inputs).figures
        self.movements += [
            Movement(ask.round, u.client, u.num_samples / total, 1.0, distances[f"distance:{u.client}"])
            for u in updates
        ]
        known = () if self.residuals is None else (self.residuals,)
        kept = self.compute("accumulate_residuals", {**params, "residuals": self.residuals}, (*inputs, *known))
        self.residuals = kept.digest

    def model(self, digest: str) -> nn.Module:
        model = build(self.spec.model, seed=0)
        load_weights(model, StoredFile(self.path(digest)))
        return model

    def head(self) -> nn.Module:
        return self.model(self.models[max(self.models)])

    def path(self, digest: str) -> Path:
        return self.folder / digest.removeprefix("sha256:")

    def store(self, made: Path) -> str:
        digest = "sha256:" + hashlib.sha256(made.read_bytes()).hexdigest()
        made.rename(self.path(digest))
        return digest
