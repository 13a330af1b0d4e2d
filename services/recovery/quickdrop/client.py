"""QuickDrop at a client: a distilled set is made once, kept sealed on the client's disk, and trained on in every round.

It begins with real samples and stays near them, so it is personal data: it carries the fingerprint of the samples that
it was made of, and is made anew when some of these have been erased.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from services.core import digests
from services.core.seeds import derive
from services.data.dataset import Array
from services.program.client import TaskInHand
from services.recovery.classes import fingerprint, sampled
from services.recovery.quickdrop.spec import DistilledTraining, QuickDrop
from services.training import devices, local
from services.training.changed_tasks import OtherSamples
from services.training.task import Sampled


def carry_out(hand: TaskInHand[DistilledTraining]) -> dict[str, float]:
    task = sampled(hand.task)
    x, y = _distilled(hand, task)
    how = hand.local.model_copy(update={"epochs": hand.parameters.local_epochs})
    figures = local.train(OtherSamples(task, x, y), hand.model, how, hand.seed, hand.device, **hand.signals)
    return {**figures, "num_distilled": float(len(y))}


def _distilled(hand: TaskInHand[DistilledTraining], task: Sampled) -> tuple[Array, Array]:
    """The set that is kept, if it is of the samples that the client has now; else a new one, which is then kept."""
    own = np.frombuffer(bytes.fromhex(fingerprint(*task.train_arrays)), dtype=np.uint8).copy()
    known = hand.kept.read(_name(hand))
    if known is not None and np.array_equal(known["of"].numpy(), own):
        return known["x"].numpy(), known["y"].numpy()
    x, y = distil(task, hand.model, hand.parameters, hand.parameters.seed, hand.device, hand)
    hand.kept.write(_name(hand), {"x": torch.from_numpy(x), "y": torch.from_numpy(y), "of": torch.from_numpy(own)})
    return x, y


def _name(hand: TaskInHand[DistilledTraining]) -> str:
    """Sets for other models, or made otherwise, are others."""
    made_by = hand.parameters.model_dump(mode="json", include=set(QuickDrop.model_fields) - {"local_epochs"})
    return f"distilled/{digests.of_json({**made_by, 'model': hand.spec.model_dump(mode='json')})[-32:]}"


def distil(
    task: Sampled,
    model: nn.Module,
    work: QuickDrop,
    seed: int,
    device: torch.device,
    hand: TaskInHand[DistilledTraining] | None = None,
) -> tuple[Array, Array]:
    """⌈share·n⌉ samples of each class, moved so that their gradient at the model has the direction of real samples' of
    the class. A class with a single sample keeps it as it is. The model is not changed."""
    x, y = task.train_arrays
    net = copy.deepcopy(model).to(device).eval()
    params = [param for param in net.parameters() if param.requires_grad]
    found_x, found_y = [], []
    for label in np.unique(y):
        rows = np.flatnonzero(y == label)
        draw = np.random.default_rng(derive(seed, "distil", int(label)))
        count = math.ceil(work.share * len(rows))
        images = torch.from_numpy(x[draw.permutation(rows)[:count]]).to(device)
        labels = torch.full((count,), int(label), dtype=torch.long, device=device)
        if len(rows) > 1:
            images = images.clone().requires_grad_(True)
            velocity = torch.zeros_like(images)
            for _ in range(work.distillation_epochs):
                if hand is not None and hand.signals["should_stop"]():
                    raise local.TrainingStopped
                real = torch.from_numpy(x[draw.permutation(rows)[: work.real_batch]]).to(device)
                wanted = torch.full((len(real),), int(label), dtype=torch.long, device=device)
                with devices.seeded(derive(seed, "layers"), device):
                    target = torch.autograd.grad(task.loss(net, (real, wanted)), params)
                    own = torch.autograd.grad(task.loss(net, (images, labels)), params, create_graph=True)
                    (gradient,) = torch.autograd.grad(gradient_distance(own, target), images)
                if not bool(torch.isfinite(gradient).all()):
                    break
                velocity = work.image_momentum * velocity + gradient
                images = (images.detach() - work.image_learning_rate * velocity).requires_grad_(True)
        found_x.append(images.detach().cpu().numpy())
        found_y.append(labels.cpu().numpy().astype(y.dtype))
    return np.concatenate(found_x), np.concatenate(found_y)


def gradient_distance(own: Sequence[Tensor], target: Sequence[Tensor]) -> Tensor:
    """Σ over layers and over the rows of their weights of 1 − cos(own, target); vectors (biases) are left out, as in
    gradient matching (Zhao et al., ICLR 2021)."""
    total = own[0].new_zeros(())
    for one, other in zip(own, target, strict=True):
        if one.ndim > 1:
            total = total + (1 - nn.functional.cosine_similarity(one.flatten(1), other.flatten(1))).sum()
    return total
