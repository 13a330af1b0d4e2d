"""ResNet (He et al., 2016) with basic blocks, in its form for small images: a 3x3 stem, GroupNorm for BatchNorm."""

from __future__ import annotations

from torch import Tensor, nn

from services.models.spec import NORM_GROUPS, ResNetParams


class Block(nn.Module):
    """x + two convolutions of it; where the shape changes, x goes through a 1x1 convolution."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(*_normed(channels, width, 3, stride), nn.ReLU(), *_normed(width, width, 3, 1))
        changes = stride != 1 or channels != width
        self.shortcut = nn.Sequential(*_normed(channels, width, 1, stride)) if changes else nn.Identity()
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.activation(self.inner(x) + self.shortcut(x))
        return out


def build(params: ResNetParams) -> nn.Module:
    channels = params.WIDTHS[0]
    layers: list[nn.Module] = [*_normed(params.input_shape[0], channels, 3, 1), nn.ReLU()]
    for stage, (width, num_blocks) in enumerate(zip(params.WIDTHS, params.num_blocks(), strict=True)):
        for block in range(num_blocks):
            layers.append(Block(channels, width, stride=2 if stage and not block else 1))
            channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, params.num_classes))


def _normed(channels: int, width: int, kernel_size: int, stride: int) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(channels, width, kernel_size, stride, padding=kernel_size // 2, bias=False)
    return convolution, nn.GroupNorm(NORM_GROUPS, width)
