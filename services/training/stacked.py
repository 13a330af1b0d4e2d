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
        """Take a step along the gradient `left @ right`, for the copies that have one."""
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
        num, most = len(samples), len(samples[0])
        self._orders: Sequence[Tensor] = ()
        self._errors = torch.zeros(num, most, layer.out_features)
        self._bias_moves = torch.zeros(num, 1, layer.out_features)
        base = layer.weight.detach().T.contiguous()
        self._first_outputs = [torch.addmm(layer.bias.detach(), own, base) for own in samples]
        # Both hold the samples in the order of the current epoch.
        self._outputs, self._new_errors = torch.zeros_like(self._errors), torch.zeros_like(self._errors)
        self._between = torch.empty(num, most, most)

    def begin_epoch(self, orders: Sequence[Tensor]) -> None:
        """From here on, each copy's samples are counted in its order."""
        is_first = not self._orders
        self._end_epoch()
        self._orders = orders
        for slot, (order, products) in enumerate(zip(orders, self._products, strict=True)):
            size, outputs = len(order), self._first_outputs[slot]
            if not is_first:
                outputs = torch.addmm(outputs, products, self._errors[slot, :size], alpha=-self._learning_rate)
            torch.index_select(outputs, 0, order, out=self._outputs[slot, :size])
            if size < self._between.shape[1]:
                self._between[slot].zero_()
            self._between[slot, :size, :size] = products.index_select(0, order).index_select(1, order)

    def outputs(self, first: int, num: int, width: int) -> Tensor:
        """Activations after ReLU, for the samples from `first` on, of the first `num` copies."""
        rows = slice(first, first + width)
        outputs = self._outputs[:num, rows] + self._bias_moves[:num]
        if first:
            before = self._between[:num, rows, :first]
            outputs.baddbmm_(before, self._new_errors[:num, :first], alpha=-self._learning_rate)
        return outputs.relu_()

    def descend(self, first: int, errors: Tensor) -> None:
        num, width, _ = errors.shape
        self._new_errors[:num, first : first + width] = errors
        self._bias_moves[:num].sub_(errors.sum(1, keepdim=True), alpha=self._learning_rate)

    def add_moves(self, weight: Tensor, bias: Tensor, shares: Tensor) -> None:
        """Add the sum over the copies of share * (trained - base)."""
        self._end_epoch()
        moves = torch.zeros(weight.T.shape)
        for own, errors, share in zip(self._samples, self._errors, shares.tolist(), strict=True):
            moves.addmm_(own.T, errors[: len(own)], alpha=-self._learning_rate * share)
        weight.add_(moves.T)
        bias.addmv_(self._bias_moves[:, 0].T, shares)

    def _end_epoch(self) -> None:
        for errors, order, new in zip(self._errors, self._orders, self._new_errors, strict=False):
            errors.index_add_(0, order, new[: len(order)])
        self._orders = ()


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
