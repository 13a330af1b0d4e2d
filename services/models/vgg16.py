"""VGG-16 (Simonyan & Zisserman, 2015) for small images: one linear layer at the end, GroupNorm throughout."""

from __future__ import annotations

from torch import nn

from services.models.spec import NORM_GROUPS, Vgg16Params


def build(params: Vgg16Params) -> nn.Module:
    layers: list[nn.Module] = []
    channels = params.input_shape[0]
    for widths in Vgg16Params.STAGES:
        for width in widths:
            layers += [
                nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False),
                nn.GroupNorm(NORM_GROUPS, width),
                nn.ReLU(),
            ]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(params.num_features(), params.num_classes))
