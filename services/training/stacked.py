"""Copies of one mlp side by side, moved by SGD with batched matrix products: the arithmetic of `grouped`.

Gradients are worked out by hand, so that the product that makes one also takes the step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from services.training.local_spec import LocalTraining


class StackedMlp:
    """Linear layers with ReLU between them. Every parameter has an axis of copies in front."""

    def __init__(self, layers: Sequence[nn.Linear], num_copies: int, local: LocalTraining) -> None:
        self._local = local
        self.weights = [_copies(layer.weight, num_copies) for layer in layers]
        self.biases = [_copies(layer.bias[None], num_copies) for layer in layers]
        self._velocities = (
            {id(param): torch.zeros_like(param) for param in (*self.weights, *self.biases)} if local.momentum else {}
        )

    @torch.no_grad()
    def step(self, inputs: Tensor, labels: Tensor, shares: Tensor) -> Tensor:
        """One SGD step of the first `len(inputs)` copies, each on its own batch; returns each one's loss before it.

        inputs [copies, samples, features]; labels [copies, samples]; shares: the weight of each sample in its batch's
        mean, 0 where a short batch was filled up.
        """
        num = len(inputs)
        outputs = [inputs]
        for weight, bias in zip(self.weights, self.biases, strict=True):
            if len(outputs) > 1:
                outputs[-1].relu_()
            outputs.append(torch.baddbmm(bias[:num], outputs[-1], weight[:num].transpose(1, 2)))

        log_likelihoods, right = outputs.pop().log_softmax(2), labels[..., None]
        losses = -(log_likelihoods.gather(2, right)[..., 0] * shares).sum(1)
        error = log_likelihoods.exp_()
        error.scatter_add_(2, right, error.new_tensor(-1.0).expand(right.shape)).mul_(shares[..., None])
        errors = [error]
        for weight, output in zip(self.weights[:0:-1], outputs[:0:-1], strict=True):
            errors.insert(0, torch.bmm(errors[0], weight[:num]).mul_(output > 0))

        if self._local.clip_norm is not None:
            _clip(errors, outputs, self._local.clip_norm)
        ones = inputs.new_ones(1, 1, 1).expand(num, 1, inputs.shape[1])
        for weight, bias, error, output in zip(self.weights, self.biases, errors, outputs, strict=True):
            self._descend(weight, error.transpose(1, 2), output)
            self._descend(bias, ones, error)
        return losses

    def _descend(self, param: Tensor, left: Tensor, right: Tensor) -> None:
        """Along the gradient `left @ right`, for the copies that have one."""
        local, num = self._local, len(left)
        if not local.momentum:
            shrink = 1 - local.learning_rate * local.weight_decay
            param[:num].baddbmm_(left, right, beta=shrink, alpha=-local.learning_rate)
            return
        velocity = self._velocities[id(param)][:num].baddbmm_(left, right, beta=local.momentum)
        velocity.add_(param[:num], alpha=local.weight_decay)
        param[:num].add_(velocity, alpha=-local.learning_rate)


def _copies(param: Tensor, num: int) -> Tensor:
    return param.detach().expand(num, *param.shape).clone()


def _clip(errors: Sequence[Tensor], outputs: Sequence[Tensor], max_norm: float) -> None:
    """Scale each copy's errors, and so its gradients, as torch's clip_grad_norm_ does.

    The squared norm of error^T output is the sum over (error error^T) * (output output^T): small matrices only.
    """
    squares = torch.stack(
        [
            (torch.bmm(error, error.transpose(1, 2)) * (torch.bmm(output, output.transpose(1, 2)) + 1)).sum((1, 2))
            for error, output in zip(errors, outputs, strict=True)
        ]
    ).sum(0)
    scale = (max_norm / (squares.clamp(min=0).sqrt() + 1e-6)).clamp(max=1.0)
    for error in errors:
        error.mul_(scale[:, None, None])
