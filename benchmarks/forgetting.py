"""How well each method forgets a client, and what it costs: `lethe bench forgetting [--preset small] [--json]`.

For each data set and seed a real coordinator and two worker processes train ten clients on lopsided shares; one of
them, the leaver, carries a backdoor canary. Then, for each method, a coordinator goes on from a copy of that state and
erases the leaver over HTTP, with the method's default parameters. Cost is the workers' own count of seconds, bytes are
those that clients on machines of their own would move; both are relative to retraining from the same state.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from benchmarks import report
from benchmarks.figures import Printer
from benchmarks.forgetting_data import Case, attacks, make_case, scores
from benchmarks.forgetting_report import ATTACKED, make_report, markdown
from benchmarks.processes import ProcessDied, tidy_when_terminated
from benchmarks.served import READY_WITHIN_S, Served, client_names, serving
from lethe.client import Record
from lethe.failures import CommandFailed
from services.audit.spec import BEFORE
from services.data.data_folders import folders_of
from services.data.dataset import DataUnusable
from services.methods.catalogue import UNLEARNING
from services.training.local_spec import LocalTraining

FINE_TUNE: Final = "fine-tune"
"""Not a method: the others train on from the model as it is. Shows whether a method does more than that."""
METHODS: Final = (*(name for name, method in UNLEARNING.items() if not method.needs_sub_cohorts), FINE_TUNE)
FINE_TUNED_ROUNDS: Final = UNLEARNING["not"].recovery_rounds
NUM_CLIENTS: Final = 10
NUM_FLEETS: Final = 2
REQUESTS: Final = "/v1/erasure-requests"


@dataclass(frozen=True)
class Setting:
    """What one federation is trained on, and how."""

    dataset: str
    seed: int
    alpha: float
    model: str
    rounds: int
    samples_per_client: int
    max_seconds: float
    learning_rate: float = 0.2
    epochs: int = 4

    @property
    def local(self) -> LocalTraining:
        return LocalTraining(epochs=self.epochs, batch_size=32, learning_rate=self.learning_rate)


@dataclass(frozen=True)
class Preset:
    datasets: tuple[str, ...]
    alphas: tuple[float, ...]
    model: str
    rounds: int
    samples: int


PRESETS: Final = {
    "small": Preset(("mnist", "fashion-mnist"), (0.5,), "mlp", rounds=20, samples=300),
    "full": Preset(("mnist", "fashion-mnist", "cifar10"), (0.1, 0.3, 0.5, 1.0), "lenet5", rounds=40, samples=1000),
}


@dataclass(frozen=True)
class Trained:
    """A finished run, as the coordinator's directory holds it."""

    setting: Setting
    case: Case
    sources: list[str]
    tokens: list[str]
    state: Path
    run_id: str
    head: Path
    """The weights that were trained."""
    scores: dict[str, float]

    def judge(self, weights: Path) -> dict[str, float]:
        """What a model that came after still knows."""
        return {**scores(self.case, weights), **attacks(self.case, weights, self.head, self.setting.local)}


@dataclass(frozen=True)
class Work:
    """What clients did in one erasure."""

    client_seconds: float
    num_updates: int
    bytes: int


@dataclass(frozen=True)
class Outcome:
    scores: dict[str, float]
    work: Work
    seconds: float
    """From the request to its completion."""


def train(setting: Setting, home: Path, folders: Sequence[Path]) -> Trained:
    case = make_case(
        setting.dataset,
        setting.seed,
        folders,
        model=setting.model,
        num_clients=NUM_CLIENTS,
        samples_per_client=setting.samples_per_client,
        alpha=setting.alpha,
    )
    sources, state = case.write(home / "data"), home / "trained"
    with serving(state=state) as served:
        tokens = served.enrol(NUM_CLIENTS)
        validation = served.operator.upload(
            case.write_validation(home / "validation.safetensors"), federation_id=served.federation_id
        )
        with _fleets(served, tokens, sources):
            run_id = served.start_run(_spec(setting, case, validation["digest"]))
            served.wait_for_end(run_id, setting.max_seconds, every_s=0.1)
        head = home / "before.safetensors"
        shutil.copy(_head(served, run_id)[1], head)
    return Trained(setting, case, sources, tokens, state, run_id, head, scores(case, head))


def erase(trained: Trained, method: str, home: Path, params: dict[str, Any], recovery: int | None = None) -> Outcome:
    """The leaver, by this method, from a copy of the trained state."""
    state, limit_s = home / method, trained.setting.max_seconds
    shutil.copytree(trained.state, state)
    body = {
        "subjects": [client_names(NUM_CLIENTS)[trained.case.leaver]],
        "method": method,
        "params": params,
        "guarantee": UNLEARNING[method].guarantee,
        "recovery_rounds": recovery,
    }
    with serving(state=state) as served:
        with _fleets(served, trained.tokens, trained.sources) as logs:
            request = _complete(served, {"federation_id": served.federation_id, **body}, limit_s)
            served.wait_for_end(trained.run_id, limit_s, every_s=0.05)
        head, weights = _head(served, trained.run_id)
        outcome = Outcome(trained.judge(weights), _work(logs, head["bytes"]), request["seconds"])
    shutil.rmtree(state)
    return outcome


def fine_tune(trained: Trained, home: Path) -> Outcome:
    """A run of those who stay, which begins with the model as it is."""
    state, setting = home / FINE_TUNE, trained.setting
    shutil.copytree(trained.state, state)
    names = client_names(NUM_CLIENTS)
    with serving(state=state) as served:
        with _fleets(served, trained.tokens, trained.sources) as logs:
            spec = {
                "name": FINE_TUNE,
                "seed": setting.seed + 1,
                "model": trained.case.model.model_dump(mode="json"),
                "init": _head(served, trained.run_id)[0]["digest"],
                "clients": [name for number, name in enumerate(names) if number != trained.case.leaver],
                "local": setting.local.model_dump(mode="json"),
                "stop": {"rounds": min(FINE_TUNED_ROUNDS, setting.rounds)},
            }
            started = time.monotonic()
            run_id = served.start_run(spec)
            served.wait_for_end(run_id, setting.max_seconds, every_s=0.05)
            seconds = time.monotonic() - started
        head, weights = _head(served, run_id)
        outcome = Outcome(trained.judge(weights), _work(logs, head["bytes"]), seconds)
    shutil.rmtree(state)
    return outcome


@contextmanager
def _fleets(served: Served, tokens: Sequence[str], sources: Sequence[str]) -> Iterator[list[Path]]:
    """Two worker processes with every other client each, once all are online; their logs."""
    with ExitStack() as stack:
        parts = [slice(number, None, NUM_FLEETS) for number in range(NUM_FLEETS)]
        fleets = [stack.enter_context(served.fleet(f"fleet-{p.start}", tokens[p], sources[p])) for p in parts]
        logs = [fleet.log for fleet in fleets]
        deadline = time.monotonic() + READY_WITHIN_S
        while len(_events(logs, "session.opened")) < len(tokens):
            for fleet in fleets:
                fleet.expect_alive()
            if time.monotonic() > deadline:
                raise ProcessDied(f"not all clients are online:\n{fleets[0].tail()}")
            time.sleep(0.1)
        yield logs


def _spec(setting: Setting, case: Case, validation: str) -> dict[str, Any]:
    return {
        "name": setting.dataset,
        "seed": setting.seed,
        "model": case.model.model_dump(mode="json"),
        "local": setting.local.model_dump(mode="json"),
        "validation": {"data": validation, "every": setting.rounds},
        "history": {"distances": True, "residuals": True},
        "stop": {"rounds": setting.rounds},
    }


def _complete(served: Served, body: dict[str, Any], timeout_s: float) -> Record:
    started = time.monotonic()
    filed = served.operator.post(REQUESTS, body, headers={"Idempotency-Key": uuid4().hex})
    while True:
        request = dict(served.operator.get(f"{REQUESTS}/{filed['id']}"))
        seconds = time.monotonic() - started
        if request["status"] == "completed":
            return {**request, "seconds": seconds}
        if request["status"] in ("failed", "requires_action") or seconds > timeout_s:
            raise ProcessDied(f"the request is {request['status']}: {request['reason']}\n{served.server.tail()}")
        time.sleep(0.05)


def _head(served: Served, run_id: str) -> tuple[Record, Path]:
    """The checkpoint that the run serves, and a file with its weights."""
    head = next(one for one in served.list(f"/v1/runs/{run_id}/checkpoints") if one["is_head"])
    path = served.home / "head.safetensors"
    served.operator.download(f"/v1/checkpoints/{head['id']}/model", path)
    return head, path


def _work(logs: Sequence[Path], model_bytes: int) -> Work:
    """From the workers' logs. Each task brings a model and takes an update away; a teacher comes once, besides."""
    done = _events(logs, "task.submitted")
    teachers = 1 if any(line["kind"] == "distil" for line in done) else 0
    return Work(
        sum(float(line["metrics"]["seconds"]) for line in done), len(done), (2 * len(done) + teachers) * model_bytes
    )


def _events(logs: Sequence[Path], name: str) -> list[dict[str, Any]]:
    """Of that name; the last line of a log may be half written."""
    lines = [line for log in logs for line in log.read_text("utf-8").splitlines(keepends=True)]
    found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
    return [one for one in found if one.get("event") == name]


def row(trained: Trained, method: str, outcome: Outcome, reference: Outcome) -> dict[str, Any]:
    setting, ours, theirs = trained.setting, outcome.work, reference.work
    return {
        "dataset": setting.dataset,
        "method": method,
        "seed": setting.seed,
        **{name: _rounded(outcome.scores.get(name)) for name in (*ATTACKED, *outcome.scores)},
        "cost_ratio": round(ours.client_seconds / theirs.client_seconds, 4),
        "bytes_ratio": round(ours.bytes / theirs.bytes, 4),
        "mia_auc_retrain": _rounded(reference.scores.get("mia_auc")),
        **{BEFORE + name: _rounded(value) for name, value in trained.scores.items()},
        "client_seconds": round(ours.client_seconds, 2),
        "client_updates": ours.num_updates,
        "seconds": round(outcome.seconds, 2),
        "alpha": setting.alpha,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def measure(setting: Setting, methods: Sequence[str], folders: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """A row for each method, retraining first: the others are counted against it."""
    with tempfile.TemporaryDirectory(prefix="lethe-forgetting-", ignore_cleanup_errors=True) as directory:
        home = Path(directory)
        _tell(setting, "training")
        trained = train(setting, home, folders)
        _tell(setting, "retrain")
        reference = erase(trained, "retrain", home, {})
        yield row(trained, "retrain", reference, reference)
        for method in methods:
            if method != "retrain":
                _tell(setting, method)
                outcome = fine_tune(trained, home) if method == FINE_TUNE else erase(trained, method, home, {})
                yield row(trained, method, outcome, reference)


def _tell(setting: Setting, doing: str) -> None:
    place = f"{setting.dataset}, α = {setting.alpha:g}, seed {setting.seed}"
    print(f"{time.strftime('%H:%M:%S')} {place}: {doing}", file=sys.stderr, flush=True)


def settings(options: argparse.Namespace) -> list[Setting]:
    preset = PRESETS[options.preset]
    return [
        Setting(
            dataset,
            seed,
            alpha,
            options.model or preset.model,
            options.rounds or preset.rounds,
            options.samples or preset.samples,
            options.max_seconds,
        )
        for seed in range(options.seeds)
        for dataset in options.dataset or preset.datasets
        for alpha in options.alpha or preset.alphas
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lethe bench forgetting", description=__doc__)
    parser.add_argument("--json", action="store_true", help="JSON lines; the table then goes to standard error")
    parser.add_argument("--preset", choices=[*PRESETS], default="small")
    parser.add_argument("--dataset", action="append", help="only this one (mnist, cifar10, digits, …); may be repeated")
    parser.add_argument("--method", action="append", choices=METHODS, help="only this one and retrain; may be repeated")
    parser.add_argument("--alpha", action="append", type=float, help="of the Dirichlet shares; may be repeated")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0")
    parser.add_argument("--model", choices=["mlp", "lenet5", "cnn"], help="the preset's when absent")
    parser.add_argument("--rounds", type=int, help="of training; the preset's when absent")
    parser.add_argument("--samples", type=int, help="per client, on average; the preset's when absent")
    parser.add_argument("--data", type=Path, help="folder of mnist.npz, …; then those of LETHE_DATA")
    parser.add_argument("--out", type=Path, help="folder for report.html and report.md with plots")
    parser.add_argument("--max-seconds", type=float, default=600, help="give a run up after this long")
    options = parser.parse_args(argv)
    folders = (*([options.data] if options.data else []), *folders_of(os.environ))
    printer = Printer(as_json=options.json, benchmark="forgetting")
    rows: list[dict[str, Any]] = []
    failures = 0
    for setting in settings(options):
        try:
            with tidy_when_terminated():
                for found in measure(setting, options.method or METHODS, folders):
                    rows.append(found)
                    printer.row(found)
        except DataUnusable as error:
            print(error, file=sys.stderr)
            return 2
        except (ProcessDied, CommandFailed) as error:
            failures += 1
            print(f"{setting.dataset}, seed {setting.seed}: {error}", file=sys.stderr)
    print(f"\n{markdown(rows)}", file=sys.stderr if options.json else sys.stdout)
    if options.out is not None and rows:
        print(report.write(make_report(rows, _command(options)), options.out), file=sys.stderr)
    return 1 if failures else 0


def _command(options: argparse.Namespace) -> str:
    """As typed, without folders."""
    words = ["lethe bench forgetting", f"--preset {options.preset}", f"--seeds {options.seeds}"]
    for name in ("dataset", "method", "alpha", "model", "rounds", "samples"):
        given = getattr(options, name)
        words += [f"--{name} {value}" for value in (given if isinstance(given, list) else [given]) if value is not None]
    return " ".join(words)


if __name__ == "__main__":
    raise SystemExit(main())
