"""FedRS at a client: ordinary training with a restricted softmax."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from services.program.client import TaskInHand
from services.recovery.classes import class_counts, labelled
from services.recovery.fedrs.spec import RestrictedTraining
from services.training import local
from services.training.changed_tasks import WithLoss
from services.training.task import Batch


def carry_out(hand: TaskInHand[RestrictedTraining]) -> dict[str, float]:
    task = labelled(hand.task)
    scales = restriction(class_counts(task, hand.model, hand.device), hand.parameters.alpha).to(hand.device)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits, labels = task.predict(model, batch)
        return cross_entropy(scales * logits, labels)

    return local.train(WithLoss(task, loss), hand.model, hand.local, hand.seed, hand.device, **hand.signals)


def restriction(counts: Tensor, alpha: float) -> Tensor:
    """α + (1 − α)·p_c / max p for each class c: 1 for the client's largest class, α for one that it has not."""
    return (alpha + (1 - alpha) * counts / counts.max()).to(torch.float32)
