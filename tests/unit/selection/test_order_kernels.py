"""The kernels of selection policies over real files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.core.seeds import derive
from services.selection.dqn import learning
from services.selection.dqn.kernels import COSINES
from services.selection.dqn.learning import Learner
from services.selection.question import Question, first_of, order_in
from services.tensors import codec
from services.tensors.streams import StoredFile
from tests.support.kernels import run_over_files

NAMES = [f"client-{number:02}" for number in range(12)]
NUM_DIRECTIONS = 3
MODEL = {"name": "mlp", "params": {"input_shape": [4], "num_classes": 3, "hidden": [5]}}


class Round:
    """Twelve clients whose updates point in three directions, four in each, and a model to judge."""

    def __init__(self, folder: Path) -> None:
        from services.models.build import build
        from services.models.weights import save_tensors
        from services.wire.v1.runs import ModelSpec

        self.folder, self.files = folder, dict[str, Path]()
        for name in ("model", "before"):
            self.files[name] = folder / name
            save_tensors(self.files[name], build(ModelSpec.model_validate(MODEL), seed=len(name)).state_dict())
        self.layout = codec.read(StoredFile(self.files["model"]))
        rng = np.random.default_rng(4)
        self.directions = [{n: rng.standard_normal(t.shape) for n, t in self.layout.items()} for _ in range(3)]
        for number, name in enumerate(NAMES):
            self.send(name, number % NUM_DIRECTIONS, rng)
        self.files["validation"] = folder / "validation"
        x = rng.standard_normal((30, 4)).astype(np.float32)
        codec.write_file(self.files["validation"], {"x": x, "y": rng.integers(0, 3, 30)})

    def send(self, name: str, direction: int, rng: np.random.Generator) -> None:
        update = {
            n: (t + 0.05 * rng.standard_normal(t.shape)).astype(np.float32)
            for n, t in self.directions[direction].items()
        }
        self.files[f"u-{name}"] = self.folder / name
        codec.write_file(self.files[f"u-{name}"], update)

    def ask(self, asked: str, out: str, **changes: Any) -> dict[str, float]:
        given = {
            "policy": {"policy": asked},
            "members": NAMES,
            "num_clients": 3,
            "seed": 7,
            "round": 1,
            "model": "model",
            "architecture": MODEL,
            "validation": "validation",
        }
        question = Question.model_validate({**given, **changes})
        figures = run_over_files(f"{asked}_order", question.model_dump(), self.files, self.folder / out)
        self.files[out] = self.folder / out
        return figures

    @staticmethod
    def sent(*names: str) -> list[dict[str, Any]]:
        return [{"client": name, "digest": f"u-{name}", "num_samples": 10} for name in names]


@pytest.fixture
def asked(tmp_path: Path) -> Round:
    return Round(tmp_path)


def directions(names: list[str]) -> set[int]:
    return {NAMES.index(name) % NUM_DIRECTIONS for name in names}


@pytest.mark.parametrize("policy", ["k_center", "clusters", "dqn"])
def test_one_client_of_each_direction_is_among_the_first(asked: Round, policy: str) -> None:
    first = asked.ask(policy, "state", profiles=asked.sent(*NAMES))
    assert set(order_in(first)) == set(NAMES)
    picked = []
    for round in range(1, 9):
        figures = asked.ask(policy, "later", state="state", clients=NAMES, round=round)
        chosen = list(order_in(figures)[:3])
        assert directions(chosen) == {0, 1, 2}
        picked.append(tuple(sorted(chosen)))
    assert len(set(picked)) > 3, "not always the same"


@pytest.mark.parametrize("policy", ["k_center", "clusters", "dqn"])
def test_the_same_question_has_the_same_answer_and_the_same_state(asked: Round, policy: str) -> None:
    once = asked.ask(policy, "once", profiles=asked.sent(*NAMES))
    again = asked.ask(policy, "again", profiles=asked.sent(*NAMES)[::-1])
    assert once == again
    assert asked.files["once"].read_bytes() == asked.files["again"].read_bytes()


@pytest.mark.parametrize("policy", ["k_center", "clusters", "dqn"])
def test_those_without_a_profile_are_a_group_of_their_own(asked: Round, policy: str) -> None:
    known = NAMES[:9]
    asked.ask(policy, "state", profiles=asked.sent(*known))
    for round in range(1, 5):
        figures = asked.ask(policy, "later", state="state", clients=NAMES, round=round)
        chosen = order_in(figures)[:3]
        assert len(set(chosen) - set(known)) == 1


@pytest.mark.parametrize("policy", ["k_center", "clusters", "dqn"])
def test_newcomers_and_those_who_left_are_reckoned_with(asked: Round, policy: str) -> None:
    asked.ask(policy, "state", profiles=asked.sent(*NAMES))
    members = sorted([*NAMES[2:], "anew"])
    figures = asked.ask(policy, "later", state="state", clients=NAMES, members=members)
    assert set(order_in(figures)) == set(members)
    assert "anew" in order_in(figures)[:3], "a group of its own"


@pytest.mark.parametrize("policy", ["k_center", "clusters", "dqn"])
@pytest.mark.parametrize("members", [NAMES[:1], NAMES[:2]])
def test_few_members_and_no_profile_at_all(asked: Round, policy: str, members: list[str]) -> None:
    assert set(order_in(asked.ask(policy, "none", members=members))) == set(members)
    assert set(order_in(asked.ask(policy, "all", members=members, profiles=asked.sent(*members)))) == set(members)


def state_of(asked: Round, name: str) -> dict[str, Any]:
    return codec.read(StoredFile(asked.files[name]))


def test_the_state_has_the_cosines_of_updates_with_the_models_step(asked: Round) -> None:
    asked.ask("dqn", "state", profiles=asked.sent(*NAMES))
    before = state_of(asked, "state")[COSINES]
    took_part = NAMES[3:6]
    observed = {"base": "before", "updates": asked.sent(*took_part)}
    figures = asked.ask("dqn", "later", state="state", clients=NAMES, observed=observed, round=2)
    after = state_of(asked, "later")

    def flat(name: str) -> Any:
        tensors = codec.read(StoredFile(asked.files[name]))
        return np.concatenate([tensors[n].astype(np.float64).ravel() for n in sorted(asked.layout)])

    step = flat("model") - flat("before")
    for row, name in enumerate(NAMES):
        update = flat(f"u-{name}")
        cosine = update @ step / np.linalg.norm(update) / np.linalg.norm(step)
        assert after[COSINES][row] == pytest.approx(cosine if name in took_part else before[row])
    assert after["memory.action"].tolist() == [3, 4, 5], "one transition for each client that took part"
    np.testing.assert_array_equal(after["memory.state"], np.tile(before, (3, 1)))
    np.testing.assert_array_equal(after["memory.next"], np.tile(after[COSINES], (3, 1)))
    assert after["memory.reward"].tolist() == [learning.reward(figures["accuracy"], 0.9)] * 3
    assert figures["num_steps"] == 3 and figures["fell_back"] == 1


def test_profiles_are_compared_with_their_mean_and_in_the_paper_with_the_model(asked: Round) -> None:
    flat = {
        name: np.concatenate([
            codec.read(StoredFile(asked.files[f"u-{name}"]))[n].astype(np.float64).ravel() for n in sorted(asked.layout)
        ])
        for name in NAMES
    }  # fmt: skip
    model = np.concatenate([asked.layout[n].astype(np.float64).ravel() for n in sorted(asked.layout)])
    for preset, reference in (("shared", sum(flat.values()) / len(flat)), ("paper", model)):
        policy = {"policy": "dqn", "preset": preset}
        asked.ask("dqn", preset, policy=policy, profiles=asked.sent(*NAMES))
        found = state_of(asked, preset)[COSINES]
        for row, name in enumerate(NAMES):
            cosine = flat[name] @ reference / np.linalg.norm(flat[name]) / np.linalg.norm(reference)
            assert found[row] == pytest.approx(cosine)


def trained(asked: Round, preset: str, num_clients: int, name: str = "trained") -> None:
    fresh = Learner.fresh(preset, num_clients, seed=3)  # type: ignore[arg-type]
    tensors = {**fresh.network_tensors, "num_steps": np.array([learning.TRAINED_STEPS])}
    asked.files[name] = asked.folder / name
    codec.write_file(asked.files[name], tensors)


def test_a_trained_network_selects_and_explores_now_and_then(asked: Round) -> None:
    trained(asked, "shared", 99)
    policy = {"policy": "dqn", "state": "sha256:" + "0" * 64}
    asked.files[policy["state"]] = asked.folder / "trained"
    first = asked.ask("dqn", "state", policy=policy, profiles=asked.sent(*NAMES))
    assert first["start_fits"] == 1.0 and "fell_back" not in first
    ways = [asked.ask("dqn", "later", state="state", clients=NAMES, policy=policy, round=r) for r in range(1, 60)]
    explored = [figures for figures in ways if "explored" in figures]
    assert 1 <= len(explored) <= 15
    greedy = {order_in(figures)[:3] for figures in ways if "explored" not in figures}
    assert len(greedy) == 1, "the same state has the same best"
    assert directions(list(next(iter(greedy)))) == {0, 1, 2}


@pytest.mark.parametrize(("preset", "made_for", "fits"), [("shared", 50, 1.0), ("paper", 50, 0.0), ("paper", 12, 1.0)])
def test_a_network_made_for_other_clients(asked: Round, preset: str, made_for: int, fits: float) -> None:
    """One scorer fits any set of clients; one with an output for each does not, and k-center selects instead."""
    trained(asked, preset, made_for)
    digest = "sha256:" + "0" * 64
    asked.files[digest] = asked.files["trained"]
    policy = {"policy": "dqn", "preset": preset, "state": digest}
    figures = asked.ask("dqn", "state", policy=policy, profiles=asked.sent(*NAMES))
    assert figures["start_fits"] == fits
    assert figures.get("fell_back", 0.0) == 1.0 - fits
    assert set(order_in(figures)) == set(NAMES)


def test_a_file_that_is_no_network_is_not_used(asked: Round) -> None:
    digest = "sha256:" + "0" * 64
    asked.files[digest] = asked.files["model"]
    policy = {"policy": "dqn", "state": digest}
    figures = asked.ask("dqn", "state", policy=policy, profiles=asked.sent(*NAMES))
    assert figures["start_fits"] == 0.0 and figures["fell_back"] == 1.0


def test_the_papers_network_begins_anew_when_somebody_joins(asked: Round) -> None:
    policy = {"policy": "dqn", "preset": "paper"}
    asked.ask("dqn", "state", policy=policy, profiles=asked.sent(*NAMES))
    figures = asked.ask("dqn", "later", policy=policy, state="state", clients=NAMES, members=[*NAMES, "newcomer"])
    assert figures["fell_back"] == 1.0
    assert state_of(asked, "later")["policy.2.weights"].shape == (256, 13)


def test_the_newest_transitions_are_remembered() -> None:
    memory = learning.Memory.empty(2)
    for number in range(learning.MOST_REMEMBERED + 3):
        memory = memory.with_round(np.zeros(2), [0], float(number), np.zeros(2))
    assert len(memory.reward_M) == learning.MOST_REMEMBERED
    assert memory.reward_M[0] == 3.0
    moved = memory.for_rows(np.array([0, 2]), 3)
    assert moved.state_MK.shape == (learning.MOST_REMEMBERED, 3)


def test_the_best_candidates_are_taken_in_name_order_and_strangers_last() -> None:
    assert first_of(["c", "a", "b"], ["a", "b", "c", "z"], 2) == ["a", "c"]
    assert first_of(["c"], ["z", "y", "c"], 2) == ["c", "y"]
    assert first_of([], [], 3) == []
    assert derive(1, "a") != derive(1, "b")
