"""MOON at a client: training with a contrastive term between the model in hand, the global one and the client's own of
the round before, which is kept sealed on its disk."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from services.program.client import TaskInHand
from services.recovery.classes import labelled
from services.recovery.moon.spec import ContrastiveTraining
from services.training import local
from services.training.changed_tasks import WithLoss
from services.training.task import Batch


def carry_out(hand: TaskInHand[ContrastiveTraining]) -> dict[str, float]:
    """In the first round of a client there is no model of its own, and the term is left out."""
    work, task = hand.parameters, labelled(hand.task)
    used, previous = _previous(hand)
    common = copy.deepcopy(hand.model)
    seen = [Representation(model) for model in (hand.model, common, *([previous] if previous is not None else []))]
    for model in (common, previous):
        if model is not None:
            model.to(hand.device).eval().requires_grad_(False)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits, labels = task.predict(model, batch)
        if previous is None:
            return cross_entropy(logits, labels)
        with torch.no_grad():
            task.predict(common, batch)
            task.predict(previous, batch)
        own, of_common, of_previous = (one.taken() for one in seen)
        return cross_entropy(logits, labels) + work.mu * contrast(own, of_common, of_previous, work.temperature)

    try:
        figures = local.train(WithLoss(task, loss), hand.model, hand.local, hand.seed, hand.device, **hand.signals)
    finally:
        seen[0].close()
    hand.kept.write(_name(work, work.number), local.snapshot(hand.model))
    for number in range(1, work.number):
        if number != used:  # that one is needed if this round has to be trained again
            hand.kept.drop(_name(work, number))
    return {**figures, "is_contrasted": float(previous is not None)}


def contrast(own: Tensor, common: Tensor, previous: Tensor, temperature: float) -> Tensor:
    """−log(e^{sim(z, z_glob)/τ} / (e^{sim(z, z_glob)/τ} + e^{sim(z, z_prev)/τ})), mean over the batch."""
    similarities = torch.stack([cosine_similarity(own, common), cosine_similarity(own, previous)], dim=1)
    return cross_entropy(similarities / temperature, torch.zeros(len(own), dtype=torch.long, device=own.device))


class Representation:
    """What goes into a model's last linear layer; of a model without any, what comes out of it."""

    def __init__(self, model: nn.Module) -> None:
        linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
        self._seen: Tensor | None = None
        if linear:
            self._handle = linear[-1].register_forward_pre_hook(lambda _, inputs: self._note(inputs[0]))
        else:
            self._handle = model.register_forward_hook(lambda _, __, output: self._note(output))

    def taken(self) -> Tensor:
        """The representations of the last pass, one row for each sample."""
        if self._seen is None:
            raise local.TrainingFailed("the model's last linear layer is never used; use another recovery")
        return self._seen.reshape(-1, self._seen.shape[-1])

    def close(self) -> None:
        self._handle.remove()

    def _note(self, tensor: Tensor) -> None:
        self._seen = tensor


def _previous(hand: TaskInHand[ContrastiveTraining]) -> tuple[int | None, nn.Module | None]:
    """The client's own model of its newest earlier round of this recovery, with the number of that round."""
    for number in range(hand.parameters.number - 1, 0, -1):
        tensors = hand.kept.read(_name(hand.parameters, number))
        if tensors is not None:
            model = copy.deepcopy(hand.model)
            model.load_state_dict(tensors)
            return number, model
    return None, None


def _name(work: ContrastiveTraining, number: int) -> str:
    return f"{work.recovery}/{number}"
