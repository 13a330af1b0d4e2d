"""Multi-layer perceptron with ReLU."""

from __future__ import annotations

import math
from itertools import pairwise

from torch import nn

from services.models.spec import MlpParams


def build(params: MlpParams) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise((math.prod(params.input_shape), *params.hidden)):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    last = params.hidden[-1] if params.hidden else math.prod(params.input_shape)
    return nn.Sequential(*layers, nn.Linear(last, params.num_classes))
