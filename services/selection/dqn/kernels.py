"""Selection by Q-learning on the server: what the last round has taught, and who is asked next.

The state of a client is the cosine between its last update and the step of the model in that round, at first between
its profile and the mean of all profiles (`paper`: between the update and the model itself).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final

import numpy as np

from services.core.seeds import derive
from services.selection.dqn.learning import Learner, reward
from services.selection.dqn.network import Doubles
from services.selection.dqn.spec import Dqn
from services.selection.k_center.kernels import groups
from services.selection.lots import grouped, in_turns, lot
from services.selection.profile import Ints, Profile, by_lot_in_groups
from services.selection.question import Observed, Question, Sent, answer
from services.tensors import codec
from services.tensors.codec import Array
from services.tensors.errors import KernelFailed
from services.tensors.rewrite import Window
from services.tensors.slices import SLICE_ELEMENTS, Source
from services.tensors.streams import Stored, Writable
from services.tensors.updates import Updates, check_finite
from services.training.evaluation import evaluate_model
from services.training.rounds import EVALUATION_BATCH

COSINES: Final = "cosines"
TIMES: Final = "times_selected"
EPSILON: Final = 0.1


def dqn_order(params: Mapping[str, Any], inputs: Mapping[str, Stored], out: Writable) -> dict[str, float]:
    """Kernel. params: a Question. Writes the state after what the last round has taught: the networks, the memory, the
    profile, and the cosine of every client."""
    question = Question.model_validate(params)
    spec = Dqn.model_validate(question.policy)
    figures: dict[str, float] = {}
    times_K = np.zeros(len(question.rows), np.int64)
    if question.state is None:
        profile, cosine_K, learner, fits = _begin(question, spec, inputs)
        figures["start_fits"] = float(fits)
    else:
        tensors = codec.read(inputs[question.state])
        profile, cosine_K, learner = _read(question, spec, tensors)
        times_K[[question.rows.index(name) for name in question.clients]] = tensors[TIMES]
    if question.observed is not None and question.observed.updates:
        accuracy = _accuracy(question, inputs, out)
        earned = reward(accuracy, spec.target_accuracy)
        took_part, next_K = _refreshed(question, question.observed, spec, cosine_K, inputs)
        memory = learner.memory.with_round(cosine_K, took_part, earned, next_K)
        seed = derive(question.seed, "replay", question.round)
        learner = replace(learner, memory=memory).learnt(len(took_part), seed)
        cosine_K = next_K
        times_K[took_part] += 1
        figures |= {"accuracy": accuracy, "reward": earned}
    codec.write(out, {**profile.tensors, **learner.tensors, COSINES: cosine_K, TIMES: times_K})
    value_K = learner.values(cosine_K[None])[0] if learner.is_trained else None
    order, way = _order(question, spec, profile, value_K, times_K)
    return answer(order, **figures, **way, num_steps=float(learner.adam.num_steps))


def _begin(question: Question, spec: Dqn, inputs: Mapping[str, Stored]) -> tuple[Profile, Doubles, Learner, bool]:
    """Begin with the pre-trained networks if there are any and they fit, else with new ones."""
    profile = Profile.of(question, inputs)
    learner = None
    if spec.state is not None:
        learner = Learner.read(spec.preset, codec.read(inputs[spec.state]), len(question.rows))
    fits = learner is not None or spec.state is None
    if learner is None:
        learner = Learner.fresh(spec.preset, len(question.rows), derive(question.seed, "networks"))
    cosine_K = np.zeros(len(question.rows))
    if question.profiles:
        cosine_K = _of_profiles(question, profile) if spec.preset == "shared" else _of_model(question, inputs)
    return profile, cosine_K, learner, fits


def _read(question: Question, spec: Dqn, tensors: Mapping[str, Array]) -> tuple[Profile, Doubles, Learner]:
    """The state as it was, with rows for everybody who came since. A network with an output for each client does not
    fit more of them, and begins anew."""
    rows, profile = question.rows, Profile.read(tensors, question)
    learner = Learner.read(spec.preset, tensors, len(question.clients))
    if learner is None:
        raise KernelFailed("the state of the selection does not have the shape of its networks")
    if rows == question.clients:
        return profile, tensors[COSINES], learner
    at_K = np.array([rows.index(name) for name in question.clients], np.int64)
    cosine_K = np.zeros(len(rows))
    cosine_K[at_K] = tensors[COSINES]
    if spec.preset == "paper":
        return profile, cosine_K, Learner.fresh(spec.preset, len(rows), derive(question.seed, "networks", len(rows)))
    return profile, cosine_K, replace(learner, memory=learner.memory.for_rows(at_K, len(rows)))


def _order(
    question: Question, spec: Dqn, profile: Profile, value_K: Doubles | None, times_K: Ints
) -> tuple[list[str], dict[str, float]]:
    """The best first: of each k-center group the best of those who took part least often, because a network that always
    has its favourites of a group trains on few samples (paper: the best of all).

    `fell_back`: the network has not learnt enough, and k-center selects. `explored`: in one of ten rounds k-center
    selects (paper: the lot), so that the network sees other clients, too."""
    group_of = groups(question, profile)
    if value_K is None:
        return by_lot_in_groups(question, group_of), {"fell_back": 1.0}
    if np.random.default_rng(derive(question.seed, "explore", question.round)).random() < EPSILON:
        one_group = dict.fromkeys(question.members, 0)
        return by_lot_in_groups(question, group_of if spec.preset == "shared" else one_group), {"explored": 1.0}
    row_of = {name: row for row, name in enumerate(question.rows)}

    def best_first(name: str) -> tuple[float, tuple[bytes, str]]:
        return -value_K[row_of[name]], lot(question.seed, question.round, name)

    def in_turn(name: str) -> tuple[int, float, tuple[bytes, str]]:
        return int(times_K[row_of[name]]), *best_first(name)

    if spec.preset == "paper":
        return sorted(question.members, key=best_first), {}
    return in_turns(sorted(group, key=in_turn) for group in grouped(group_of)), {}


def _accuracy(question: Question, inputs: Mapping[str, Stored], out: Writable) -> float:
    """The accuracy of the model that the last round has made, on the coordinator's validation set."""
    params = {
        "model": question.architecture.model_dump(),
        "weights": question.model,
        "data": question.validation,
        "batch_size": EVALUATION_BATCH,
    }
    return evaluate_model(params, inputs, out)["accuracy"]


def _of_profiles(question: Question, profile: Profile) -> Doubles:
    """Cosine of each profile with the mean of all, weighted by samples: from their products alone."""
    samples = {one.client: float(one.num_samples) for one in question.profiles}
    weight_K = np.array([samples.get(name, 0.0) for name in profile.clients])
    weight_K /= weight_K.sum()
    to_mean_K = profile.products_KK @ weight_K
    return _cosines(to_mean_K, np.diagonal(profile.products_KK), float(weight_K @ to_mean_K))


def _of_model(question: Question, inputs: Mapping[str, Stored]) -> Doubles:
    _, cosine_K = _measured(question, question.profiles, None, np.zeros(len(question.rows)), inputs)
    return cosine_K


def _refreshed(
    question: Question, observed: Observed, spec: Dqn, cosine_K: Doubles, inputs: Mapping[str, Stored]
) -> tuple[list[int], Doubles]:
    """The rows of those who took part, and the state in which they have new figures."""
    base = observed.base if spec.preset == "shared" else None
    return _measured(question, observed.updates, base, cosine_K, inputs)


def _measured(
    question: Question, sent: list[Sent], base: str | None, cosine_K: Doubles, inputs: Mapping[str, Stored]
) -> tuple[list[int], Doubles]:
    """Cosine of each update with the model's step from `base`, or with the model itself."""
    row_of = {name: row for row, name in enumerate(question.rows)}
    known = [one for one in sent if one.client in row_of]
    product_L, squared_L, of_reference = np.zeros(len(known)), np.zeros(len(known)), 0.0
    with ExitStack() as stack:
        updates = Updates.open(inputs[question.model], [one.digest for one in known], inputs, stack)
        model = Source.open(inputs[question.model], stack)
        before = Source.open(inputs[base], stack) if base is not None else None
        for part in updates.slices(SLICE_ELEMENTS):
            window = Window(part.tensor, part.first, part.length)
            reference = window(model) - (window(before) if before is not None else 0.0)
            of_reference += float(np.add.reduce(np.square(reference)))
            for place in range(len(known)):
                numbers = updates.read(place, part)
                product_L[place] += np.add.reduce(numbers * reference)
                squared_L[place] += np.add.reduce(np.square(numbers))
    check_finite(product_L, squared_L, np.array(of_reference))
    rows = [row_of[one.client] for one in known]
    new_K = cosine_K.copy()
    new_K[rows] = _cosines(product_L, squared_L, of_reference)
    return rows, new_K


def _cosines(product_K: Doubles, squared_K: Doubles, of_reference: float) -> Doubles:
    """Whatever has no length is at right angles to everything."""
    lengths_K = np.sqrt(np.maximum(squared_K, 0.0) * max(of_reference, 0.0))
    is_long_K = lengths_K > 0
    return np.clip(np.where(is_long_K, product_K / np.where(is_long_K, lengths_K, 1.0), 0.0), -1.0, 1.0)
