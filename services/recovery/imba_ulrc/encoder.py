"""The encoder and decoder that a client trains on its own samples, and throws away afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from services.core.seeds import derive
from services.recovery.imba_ulrc.spec import ImbaUlrc
from services.training import devices, optimizers
from services.training.local import TrainingStopped
from services.training.local_spec import LocalTraining

HIDDEN: Final = 128
BATCH: Final = 64
MOST_OF_A_CLASS: Final = 64
"""Samples of the class whose codes are permuted in a step."""
Signal = Callable[[], bool]


class EncoderDiverged(ValueError):
    """The reconstruction is not finite: nothing can be made with this encoder."""


@dataclass(frozen=True)
class Scaling:
    """Samples are reconstructed around zero. Images have one scale for all pixels, columns of a table their own."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, x: Tensor, is_table: bool) -> Scaling:
        mean, std = (x.mean(dim=0), x.std(dim=0, correction=0)) if is_table else (x.mean(), x.std(correction=0))
        return cls(mean, torch.where(std > 0, std, torch.ones_like(std)))


class Autoencoder(nn.Module):
    def __init__(self, num_inputs: int, latent_size: int, scaling: Scaling) -> None:
        super().__init__()
        self._scaling = scaling
        self._encoder = nn.Sequential(nn.Linear(num_inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, latent_size))
        self._decoder = nn.Sequential(nn.Linear(latent_size, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, num_inputs))

    def encode(self, x: Tensor) -> Tensor:
        z: Tensor = self._encoder(self.scaled(x))
        return z

    def decode(self, z: Tensor) -> Tensor:
        return self.decode_scaled(z) * self._scaling.std + self._scaling.mean

    def decode_scaled(self, z: Tensor) -> Tensor:
        y: Tensor = self._decoder(z)
        return y

    def scaled(self, x: Tensor) -> Tensor:
        return (x - self._scaling.mean) / self._scaling.std


def train_encoder(
    x: Tensor, y: Tensor, work: ImbaUlrc, is_table: bool, seed: int, should_stop: Signal = lambda: False
) -> Autoencoder:
    """Reconstruction of every sample, eq. (2), and of permuted codes of one class drawn for each step, eq. (3). `x`:
    the samples as rows of numbers. Raises EncoderDiverged."""
    cpu = torch.device("cpu")
    with devices.seeded(derive(seed, "encoder"), cpu):
        model = Autoencoder(x.shape[1], work.latent_size, Scaling.of(x, is_table))
        local = LocalTraining(optimizer="adamw", learning_rate=work.encoder_learning_rate)
        optimizer = optimizers.make(local, list(model.parameters()), 0)
        own_classes = torch.unique(y)
        of_class = {int(c): torch.nonzero(y == c).flatten() for c in own_classes}
        for _ in range(work.encoder_epochs):
            for rows in torch.split(torch.randperm(len(x)), BATCH):
                if should_stop():
                    raise TrainingStopped
                drawn = int(own_classes[torch.randint(len(own_classes), ())])
                members = of_class[drawn][torch.randperm(len(of_class[drawn]))[:MOST_OF_A_CLASS]]
                loss = reconstruction(model, x[rows]) + permuted(model, x[members], work.permutation)
                if not math.isfinite(loss.item()):
                    raise EncoderDiverged(f"the reconstruction loss became {loss.item()}")
                optimizer.backward(loss)
                optimizer.step()
    return model


def reconstruction(model: Autoencoder, x: Tensor) -> Tensor:
    return mse_loss(model.decode_scaled(model.encode(x)), model.scaled(x))


def permuted(model: Autoencoder, x: Tensor, how: str) -> Tensor:
    """The codes are decoded in reverse; `matched` compares with the samples in reverse as well, `mismatched` with the
    samples in their own order."""
    decoded = model.decode_scaled(model.encode(x).flip(0))
    wanted = model.scaled(x)
    return mse_loss(decoded, wanted.flip(0) if how == "matched" else wanted)
