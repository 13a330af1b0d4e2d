"""Imba-ULRc at a client: samples of the skewed class are made once, and every round trains on them as well.

What is made stays in the memory of the process, so that no crash leaves anything behind; after one it is made again
from the same seed, and comes out the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from services.core.seeds import derive
from services.data.dataset import Array
from services.program.client import TaskInHand
from services.recovery.classes import fingerprint, sampled
from services.recovery.imba_ulrc.encoder import Autoencoder, EncoderDiverged, Signal, train_encoder
from services.recovery.imba_ulrc.smote import density_factors, interpolate
from services.recovery.imba_ulrc.spec import ImbaUlrc, OversampledTraining
from services.training import local
from services.training.changed_tasks import OtherSamples
from services.training.task import Sampled

MOST_CATEGORIES: Final = 20
"""A column of a table with at most this many different values, all of them whole numbers, is a category."""


@dataclass(frozen=True)
class Made:
    """Samples of the skewed class, and whether the encoder failed."""

    x: Array
    of: str
    """Fingerprint of the samples that they were made of."""
    diverged: bool = False


def carry_out(hand: TaskInHand[OversampledTraining]) -> dict[str, float]:
    work, task = hand.parameters, sampled(hand.task)
    made = _made(hand, task)
    x, y = task.train_arrays
    labels = np.full(len(made.x), work.skewed_class, dtype=y.dtype)
    enlarged = OtherSamples(task, np.concatenate([x, made.x]), np.concatenate([y, labels]))
    epochs = hand.local.epochs if work.local_epochs is None else work.local_epochs
    how = hand.local.model_copy(update={"epochs": epochs})
    figures = local.train(enlarged, hand.model, how, hand.seed, hand.device, **hand.signals)
    if work.is_last:
        hand.kept.forget(work.recovery)
    counts = {"num_samples": float(enlarged.num_train), "num_generated": float(len(made.x))}
    return {**figures, **counts, "encoder_diverged": float(made.diverged)}


def _made(hand: TaskInHand[OversampledTraining], task: Sampled) -> Made:
    work, (x, y) = hand.parameters, task.train_arrays
    own = fingerprint(x, y)
    known = hand.kept.recall(work.recovery)
    if isinstance(known, Made) and known.of == own:
        return known
    try:
        made = Made(make_samples(x, y, work, work.skewed_class, work.seed, hand.signals["should_stop"]), own)
    except EncoderDiverged:
        made = Made(x[:0], own, diverged=True)
    hand.kept.remember(work.recovery, made)
    return made


def make_samples(
    x: Array, y: Array, work: ImbaUlrc, skewed_class: int, seed: int, should_stop: Signal = lambda: False
) -> Array:
    """As many samples of the class as it lacks against the mean of the client's other classes; none of a class that the
    client has not. Raises EncoderDiverged."""
    need = num_needed(y, skewed_class)
    if need == 0 or not work.oversample:
        return x[:0]
    rows, is_table = torch.from_numpy(x).flatten(1), x.ndim == 2
    model = train_encoder(rows, torch.from_numpy(y), work, is_table, seed, should_stop)
    return oversample(x, y, model, work, skewed_class, seed)


def oversample(x: Array, y: Array, model: Autoencoder, work: ImbaUlrc, skewed_class: int, seed: int) -> Array:
    """Make the samples with a trained encoder. Raises EncoderDiverged."""
    need, rows, is_table = num_needed(y, skewed_class), torch.from_numpy(x).flatten(1), x.ndim == 2
    own = rows[torch.from_numpy(y == skewed_class)]
    generator = torch.Generator().manual_seed(derive(seed, "smote"))
    with torch.no_grad():
        spread = model.encode(rows).std(dim=0, correction=0)
        count = 2 * need if work.denoise else need
        codes, bases = interpolate(model.encode(own), count, work.neighbours, spread, generator)
        made = _within(model.decode(codes), rows)
        if not bool(torch.isfinite(made).all()):
            raise EncoderDiverged("the decoder makes numbers that are not finite")
        if is_table:
            columns = categories(rows)
            made[:, columns] = own[bases][:, columns]
        if work.denoise:
            made = made[least_apart(own, made, work.density_neighbours, need)]
    return made.reshape(-1, *x.shape[1:]).numpy()


def num_needed(y: Array, skewed_class: int) -> int:
    """How many samples the class lacks: the mean count of the client's other classes − its own. 0 where the client has
    none to begin with, or enough."""
    classes, counts = np.unique(y, return_counts=True)
    own, others = int(counts[classes == skewed_class].sum()), counts[classes != skewed_class]
    if own == 0 or not len(others):
        return 0
    return max(0, round(float(others.mean()) - own))


def least_apart(own: Tensor, made: Tensor, k: int, count: int) -> Tensor:
    """The places of those `count` of the made samples whose density is most like their neighbours', in their order:
    where twice as many were made, those up to the median."""
    factors = density_factors(torch.cat([own, made]), k)[len(own) :]
    return torch.sort(torch.sort(factors, stable=True).indices[:count]).values


def categories(rows: Tensor) -> Tensor:
    """The columns that hold categories. All of them are taken from one real sample, so that no made sample has a
    category that does not exist, or two that never meet."""
    are_whole = (rows == rows.round()).all(dim=0)
    are_few = torch.tensor([len(torch.unique(column)) <= MOST_CATEGORIES for column in rows.T])
    return torch.nonzero(are_whole & are_few).flatten()


def _within(made: Tensor, rows: Tensor) -> Tensor:
    """No column leaves the range of the client's own samples."""
    return torch.minimum(torch.maximum(made, rows.min(dim=0).values), rows.max(dim=0).values)
