"""LeNet-5 (LeCun et al., 1998) in its usual modern form: ReLU and max pooling."""

from __future__ import annotations

from torch import nn

from services.models.spec import LeNet5Params


def build(params: LeNet5Params) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(params.input_shape[0], 6, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(params.num_features(), 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, params.num_classes),
    )
