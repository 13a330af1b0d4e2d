"""FUDP at a client: how well each channel of the model tells a class apart, by TF-IDF over its activations.

A class is the document, a channel the term. With a_jc the mean over the samples of class c of channel j's rectified
output (of the normalisation right after the convolution, where there is one), averaged over its positions, and C the
classes that the client has:

    tf_j = a_ju / Σ_i a_iu,   idf_j = ln(C / (1 + #{c : a_jc ≥ mean_i a_ic})),   score_j = tf_j · idf_j

over the channels of each convolution, for the class u. The scores of u alone leave the client: each is added to all
weights of its channel's filter, so that the update that goes out holds nothing else.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from services.program.client import TaskInHand
from services.training import devices
from services.training.local import TrainingFailed, TrainingStopped
from services.training.task import Batch, ClientTask, Labelled
from services.unlearning.fudp.spec import RateChannels
from services.unlearning.own_accuracy import SCORING_BATCH

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


def carry_out(hand: TaskInHand[RateChannels]) -> dict[str, float]:
    return rate_channels(hand.task, hand.model, hand.parameters.forget_class, hand.device, **hand.signals)


def rate_channels(
    task: ClientTask,
    model: nn.Module,
    forget_class: int,
    device: torch.device,
    *,
    on_progress: Callable[[float], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> dict[str, float]:
    """Add each channel's score to its filter, in place. A client that cannot tell the class from another, because it
    has samples of neither or of one alone, adds nothing and says that it has no samples of it."""
    if not isinstance(task, Labelled):
        raise TrainingFailed(f"the task {type(task).__name__} has no classes: give it predict(model, batch)")
    layers = _layers(model)
    if not layers:
        raise TrainingFailed("the model has no convolutions, so there are no channels to rate; use another method")
    model.to(device).eval()
    with torch.no_grad(), _activations(layers) as taken:
        sums, counts = _sums_by_class(task, model, device, taken, on_progress, should_stop)
        num_samples = counts.get(forget_class, 0)
        if not num_samples or len(counts) < 2:
            return {"class_samples": 0.0}
        classes = sorted(counts)
        for layer in layers:
            means = torch.stack([sums[layer, one] / counts[one] for one in classes], dim=1)
            layer.weight += _spread(tf_idf(means, classes.index(forget_class)), layer.weight)
    return {"class_samples": float(num_samples), "num_samples": float(num_samples)}


def _layers(model: nn.Module) -> dict[Convolution, nn.Module]:
    """Every convolution, with the module that puts its channels out: the normalisation after it, or itself."""
    modules = list(model.modules())
    found: dict[Convolution, nn.Module] = {}
    for module, following in zip(modules, [*modules[1:], None], strict=True):
        if isinstance(module, Convolution):
            parameters = None if following is None else getattr(following, "weight", None)
            is_norm = isinstance(parameters, Tensor) and parameters.shape == (module.out_channels,)
            found[module] = following if is_norm and following is not None else module
    return found


def tf_idf(means_JC: Tensor, of: int) -> Tensor:
    """The score of each channel for one class, from the mean activation of each channel (rows) for each class."""
    total = means_JC[:, of].sum()
    tf_J = means_JC[:, of] / total if total > 0 else torch.zeros_like(means_JC[:, of])
    num_classes_J = (means_JC >= means_JC.mean(dim=0)).sum(dim=1).to(means_JC.dtype)
    return tf_J * torch.log(means_JC.shape[1] / (1 + num_classes_J))


@contextmanager
def _activations(layers: Mapping[Convolution, nn.Module]) -> Iterator[dict[Convolution, list[Tensor]]]:
    """What each layer put out in the last pass: samples x channels, once for each time that it was used."""
    taken: dict[Convolution, list[Tensor]] = defaultdict(list)

    def take(layer: Convolution, _: nn.Module, __: object, output: Tensor) -> None:
        taken[layer].append(output.relu().flatten(2).double().mean(dim=2))

    handles = [module.register_forward_hook(partial(take, layer)) for layer, module in layers.items()]
    try:
        yield taken
    finally:
        for handle in handles:
            handle.remove()


def _sums_by_class(
    task: Labelled,
    model: nn.Module,
    device: torch.device,
    taken: dict[Convolution, list[Tensor]],
    on_progress: Callable[[float], None] | None,
    should_stop: Callable[[], bool] | None,
) -> tuple[dict[tuple[Convolution, int], Tensor], dict[int, int]]:
    """Per layer and class the sum of the activations over the training samples; per class the number of samples."""
    sums: dict[tuple[Convolution, int], Tensor] = {}
    counts: dict[int, int] = defaultdict(int)
    batches: Iterator[Batch] = devices.stream(task.train_batches(SCORING_BATCH, 0), device)
    num_batches = math.ceil(task.num_train / SCORING_BATCH)
    for number, batch in enumerate(batches, 1):
        if should_stop is not None and should_stop():
            raise TrainingStopped
        taken.clear()
        _, labels = task.predict(model, batch)
        for one in sorted(set(labels.tolist())):
            rows = labels == one
            counts[one] += int(rows.sum())
            for layer, outputs in taken.items():
                added = sum((output[rows].sum(dim=0) for output in outputs[1:]), outputs[0][rows].sum(dim=0))
                if not bool(torch.isfinite(added).all()):
                    raise TrainingFailed("an activation of the model is not finite")
                sums[layer, one] = sums[layer, one] + added if (layer, one) in sums else added
        if on_progress is not None:
            on_progress(min(1.0, number / num_batches))
    return sums, dict(counts)


def _spread(scores: Tensor, weight: Tensor) -> Tensor:
    """Each channel's score, for all weights of its filter."""
    return scores.to(weight.dtype).reshape(-1, *[1] * (weight.ndim - 1)).expand_as(weight)
