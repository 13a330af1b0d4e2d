"""Copies of one mlp side by side, moved by SGD with batched matrix products: the arithmetic of `grouped`.

Gradients are worked out by hand, so that the product that makes one also takes the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    def step(
        self, inputs: Tensor, labels: Tensor, shares: Tensor, pass_down: Callable[[Tensor], None] | None = None
    ) -> Tensor:
        """One SGD step of the first `len(inputs)` copies, each on its own batch; returns each one's loss before it.

        inputs [copies, samples, features]; labels [copies, samples]; shares: the weight of each sample in its batch's
        mean, 0 where a short batch was filled up; pass_down: takes the gradient with respect to the inputs.
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

        if pass_down is not None:
            pass_down(torch.bmm(errors[0], self.weights[0][:num]))
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


class DualLayer:
    """The first layer of copies that began as one, by what its samples did to it: W = W0 - rate * errors^T samples.

    Its outputs then need W0 samples, made once in one large product, and the inner products of the samples, which
    belong to the data and are made once for all rounds; W itself is never made. Plain SGD only.
    """

    def __init__(
        self, layer: nn.Linear, samples: Sequence[Tensor], products: Sequence[Tensor], learning_rate: float
    ) -> None:
        """samples: [samples, features] of each copy, the one with most first; products: samples samples^T of each."""
        self._samples, self._products, self._learning_rate = samples, products, learning_rate
        shape = (len(samples), len(samples[0]), layer.out_features)
        self._first_outputs, self._errors = torch.zeros(shape), torch.zeros(shape)
        self._bias_moves = torch.zeros(len(samples), 1, layer.out_features)
        for outputs, own in zip(self._first_outputs, samples, strict=True):
            torch.addmm(layer.bias.detach(), own, layer.weight.detach().T, out=outputs[: len(own)])

    def outputs(self, rows: Tensor) -> Tensor:
        """After ReLU, for these samples of the first `len(rows)` copies."""
        num, width = rows.shape
        places = rows[..., None].expand(-1, -1, self._errors.shape[2])
        products = rows.new_zeros(num, width, self._errors.shape[1], dtype=torch.float32)
        for slot, own in enumerate(self._products[:num]):
            products[slot, :, : len(own)] = own[rows[slot]]
        outputs = self._first_outputs[:num].gather(1, places).add_(self._bias_moves[:num])
        return outputs.baddbmm_(products, self._errors[:num], alpha=-self._learning_rate).relu_()

    def descend(self, rows: Tensor, errors: Tensor) -> None:
        num = len(rows)
        self._errors[:num].scatter_add_(1, rows[..., None].expand_as(errors), errors)
        self._bias_moves[:num].sub_(errors.sum(1, keepdim=True), alpha=self._learning_rate)

    def add_moves(self, weight: Tensor, bias: Tensor, shares: Tensor) -> None:
        """Add the sum over the copies of share * (trained - base)."""
        for own, errors, share in zip(self._samples, self._errors, shares.tolist(), strict=True):
            weight.addmm_(errors[: len(own)].T, own, alpha=-self._learning_rate * share)
        bias.addmv_(self._bias_moves[:, 0].T, shares)


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
