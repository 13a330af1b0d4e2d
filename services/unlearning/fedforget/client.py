"""FedForget at the leaver: learn from teacher A, and away from teacher B or from the right answers.

    L = α·τ²·KL(p_A ‖ p_s) − (1−α)·λ_neg·mean(min(term, ln C))     term = KL(p_B ‖ p_s), or cross-entropy without B

per sample, p being softmax(logits / τ). The quasi-competent teacher A puts the right class's logit at the smallest of
that sample, so that what it teaches of the leaver's data is everything but the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax

from services.program.client import TaskInHand
from services.training import local
from services.training.changed_tasks import WithLoss
from services.training.local import TrainingFailed
from services.training.local_spec import LocalTraining
from services.training.task import Batch, ClientTask, Labelled
from services.unlearning.fedforget.spec import Distil
from services.unlearning.own_accuracy import own_accuracy


def carry_out(hand: TaskInHand[Distil]) -> dict[str, float]:
    work = hand.parameters
    teacher_b = None if work.teacher_b is None else hand.other_model(work.teacher_b)
    task = taught(hand.task, hand.other_model(work.teacher_a), teacher_b, work, hand.device)
    return distil(task, hand.model, work.local, hand.seed, hand.device, **hand.signals)


def distil(
    task: ClientTask,
    model: nn.Module,
    how: LocalTraining,
    seed: int,
    device: torch.device,
    **signals: Callable[..., Any],
) -> dict[str, float]:
    """Train `model` in place on a task that was `taught`. Returns `loss` and `forgotten_accuracy`, that of the model as
    it was received."""
    received = own_accuracy(task, model.to(device), device)
    return {**local.train(task, model, how, seed, device, **signals), "forgotten_accuracy": received}


def taught(
    task: ClientTask, teacher_a: nn.Module, teacher_b: nn.Module | None, work: Distil, device: torch.device
) -> ClientTask:
    """The task with the loss L."""
    if not isinstance(task, Labelled):
        raise TrainingFailed("this task has no `predict`, which gives logits and right classes; FedForget needs it")
    for teacher in (teacher_a, teacher_b):
        if teacher is not None:
            teacher.to(device).eval()

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits, labels = task.predict(model, batch)
        with torch.no_grad():
            from_a = task.predict(teacher_a, batch)[0]
            from_b = None if teacher_b is None else task.predict(teacher_b, batch)[0]
        return forgetting_loss(logits, labels, from_a, from_b, work)

    return WithLoss(task, loss)


def forgetting_loss(logits: Tensor, labels: Tensor, from_a: Tensor, from_b: Tensor | None, work: Distil) -> Tensor:
    """L, the mean over a batch. Samples beyond the cap push no further."""
    logits, from_a = logits.float(), from_a.float()
    if work.teacher == "quasi_competent":
        from_a = quasi_competent(from_a, labels)
    tau = work.temperature
    keep = tau**2 * divergence(from_a, logits, tau)
    if from_b is None:
        term = cross_entropy(logits, labels, reduction="none")
    else:
        term = divergence(from_b.float(), logits, tau)
    forget = term.clamp(max=math.log(logits.shape[1]))
    return (work.alpha * keep - (1 - work.alpha) * work.lambda_neg * forget).mean()


def divergence(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """KL(p_teacher ‖ p_student) per sample."""
    log_p, log_q = log_softmax(teacher / temperature, dim=1), log_softmax(student / temperature, dim=1)
    return (log_p.exp() * (log_p - log_q)).sum(dim=1)


def quasi_competent(logits: Tensor, labels: Tensor) -> Tensor:
    """The logits with the right class's replaced by the sample's smallest (FedQUIT)."""
    return logits.scatter(1, labels.unsqueeze(1), logits.min(dim=1, keepdim=True).values)
