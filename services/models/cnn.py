"""A small convolutional network. GroupNorm, not BatchNorm: running averages of different clients do not average."""

from __future__ import annotations

from torch import nn

from services.models.spec import CnnParams


def build(params: CnnParams) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(params.input_shape[0], 32, kernel_size=3, padding=1),
        nn.GroupNorm(8, 32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        nn.GroupNorm(8, 64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(params.num_features(), 128),
        nn.ReLU(),
        nn.Linear(128, params.num_classes),
    )
