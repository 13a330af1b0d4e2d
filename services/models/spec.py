"""Parameters of the built-in models. No torch here: the API judges a run's model with this module alone."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from itertools import pairwise
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from services.core.errors import Rejected
from services.wire.message import Message
from services.wire.v1.runs import ModelSpec

CUSTOM: Final = "custom"
MAX_PARAMETERS: Final = 2**30
"""The most parameters of a built-in model, anywhere; an installation may allow less."""
MAX_PARAMS_CHARACTERS: Final = 16_384
"""The most characters of a model's params as JSON: they go out with every task."""
NORM_GROUPS: Final = 32

Size = Annotated[int, Field(ge=1, le=65_536)]
Sizes = Annotated[tuple[Size, ...], Field(strict=False, max_length=32)]


class ClassifierParams(Message, ABC):
    input_shape: Annotated[tuple[Size, ...], Field(strict=False, min_length=1, max_length=8)]
    num_classes: Annotated[int, Field(ge=2, le=65_536)]

    @abstractmethod
    def num_parameters(self) -> int: ...


class MlpParams(ClassifierParams):
    """Flattens any input."""

    hidden: Sizes = (80,)

    def num_parameters(self) -> int:
        widths = (math.prod(self.input_shape), *self.hidden, self.num_classes)
        return sum(fan_in * fan_out + fan_out for fan_in, fan_out in pairwise(widths))


class ImageParams(ClassifierParams):
    """input_shape: [channels, height, width], or [height, width] for one channel."""

    @field_validator("input_shape")
    @classmethod
    def _is_an_image(cls, shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(shape) == 2:
            shape = (1, *shape)
        if len(shape) != 3 or min(shape[1:]) < cls.smallest_side():
            side = cls.smallest_side()
            raise ValueError(f"must be [channels, height, width] with sides of at least {side}; mlp takes any shape")
        return shape

    @classmethod
    @abstractmethod
    def smallest_side(cls) -> int: ...


class LeNet5Params(ImageParams):
    @classmethod
    def smallest_side(cls) -> int:
        return 12

    def num_features(self) -> int:
        """What is left for the linear layers: two halvings around one 5x5 convolution without padding."""
        _, height, width = self.input_shape
        return 16 * ((height // 2 - 4) // 2) * ((width // 2 - 4) // 2)

    def num_parameters(self) -> int:
        convolutions = 6 * (25 * self.input_shape[0] + 1) + 16 * (25 * 6 + 1)
        return convolutions + 120 * (self.num_features() + 1) + 84 * 121 + self.num_classes * 85


class CnnParams(ImageParams):
    @classmethod
    def smallest_side(cls) -> int:
        return 4

    def num_features(self) -> int:
        _, height, width = self.input_shape
        return 64 * (height // 4) * (width // 4)

    def num_parameters(self) -> int:
        convolutions = 32 * (9 * self.input_shape[0] + 1) + 64 * (9 * 32 + 1)
        norms = 2 * (32 + 64)
        return convolutions + norms + 128 * (self.num_features() + 1) + self.num_classes * 129


class Vgg16Params(ImageParams):
    STAGES: ClassVar = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
    """Widths of the convolutions; each stage halves the sides."""

    @classmethod
    def smallest_side(cls) -> int:
        return 32

    def num_features(self) -> int:
        _, height, width = self.input_shape
        return 512 * (height // 32) * (width // 32)

    def num_parameters(self) -> int:
        widths = [self.input_shape[0], *(width for stage in self.STAGES for width in stage)]
        convolutions = sum(_normed_convolution(fan_in, fan_out, 3) for fan_in, fan_out in pairwise(widths))
        return convolutions + self.num_classes * (self.num_features() + 1)


class ResNetParams(ImageParams):
    WIDTHS: ClassVar = (64, 128, 256, 512)

    depth: Literal[18, 34] = 18

    @classmethod
    def smallest_side(cls) -> int:
        return 8

    def num_blocks(self) -> tuple[int, ...]:
        return {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}[self.depth]

    def num_parameters(self) -> int:
        total = _normed_convolution(self.input_shape[0], self.WIDTHS[0], 3)
        widths = (self.WIDTHS[0], *self.WIDTHS)
        for (before, width), num_blocks in zip(pairwise(widths), self.num_blocks(), strict=True):
            total += _normed_convolution(before, width, 3) + (2 * num_blocks - 1) * _normed_convolution(width, width, 3)
            if before != width:
                total += _normed_convolution(before, width, 1)
        return total + self.num_classes * (self.WIDTHS[-1] + 1)


class Gpt2Params(ClassifierParams):
    """A language model. input_shape: [tokens per sample]; num_classes: the vocabulary."""

    width: Size = 64
    num_layers: Annotated[int, Field(ge=1, le=256)] = 2
    num_heads: Annotated[int, Field(ge=1, le=256)] = 4
    lora_rank: Annotated[int, Field(ge=0, le=4096)] = 0
    pretrained: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*\.safetensors$")] | None = None

    def vocabulary(self) -> int:
        return self.num_classes

    @model_validator(mode="after")
    def _fits_together(self) -> Gpt2Params:
        if len(self.input_shape) != 1:
            raise ValueError("input_shape must be [tokens per sample]")
        if self.width % self.num_heads:
            raise ValueError("width must be a multiple of num_heads")
        if self.pretrained is not None and not self.lora_rank:
            raise ValueError("pretrained names the frozen part of a model with lora_rank; without, start from init")
        return self

    def num_parameters(self) -> int:
        width = self.width
        embeddings = (self.vocabulary() + self.input_shape[0]) * width
        adapters = self.lora_rank * (width + 3 * width)
        return embeddings + self.num_layers * (12 * width**2 + 13 * width + adapters) + 2 * width


class Gpt2ClassifierParams(Gpt2Params):
    """The same with a head over the last token that is not padding (the highest of the vocabulary)."""

    vocab_size: Annotated[int, Field(ge=2, le=1_000_000)] = 257

    def vocabulary(self) -> int:
        return self.vocab_size

    def num_parameters(self) -> int:
        return super().num_parameters() + self.width * self.num_classes


def _normed_convolution(fan_in: int, fan_out: int, side: int) -> int:
    """Parameters of a convolution without bias and the GroupNorm after it."""
    return fan_in * fan_out * side * side + 2 * fan_out


PARAMS: Final[dict[str, type[ClassifierParams]]] = {
    "mlp": MlpParams,
    "lenet5": LeNet5Params,
    "cnn": CnnParams,
    "vgg16": Vgg16Params,
    "resnet": ResNetParams,
    "gpt2": Gpt2Params,
    "gpt2_classifier": Gpt2ClassifierParams,
}


def validate(spec: ModelSpec, max_parameters: int = MAX_PARAMETERS) -> None:
    """Refuse a model that no worker could build. `custom` is known to the workers only and passes."""
    try:
        num_characters = len(json.dumps(spec.params))
    except (TypeError, ValueError, RecursionError) as error:
        raise Rejected("invalid-run", "The params of the model must be plain JSON, not deeply nested.") from error
    if num_characters > MAX_PARAMS_CHARACTERS:
        raise Rejected(
            "invalid-run",
            f"The params of the model have {num_characters} characters as JSON; the limit is {MAX_PARAMS_CHARACTERS}.",
        )
    if spec.name != CUSTOM:
        params_of(spec, max_parameters)


def params_of(spec: ModelSpec, max_parameters: int = MAX_PARAMETERS) -> ClassifierParams:
    """The checked parameters of a built-in model."""
    if spec.name not in PARAMS:
        known = ", ".join((*PARAMS, CUSTOM))
        raise Rejected("invalid-run", f"There is no built-in model {spec.name!r}; known are {known}.")
    try:
        params = PARAMS[spec.name].model_validate(spec.params)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise Rejected("invalid-run", f"The params of model {spec.name} do not fit: {faults}.") from error
    if (num_parameters := params.num_parameters()) > max_parameters:
        raise Rejected(
            "invalid-run",
            f"Model {spec.name} would have {num_parameters} parameters; the limit is {max_parameters} "
            "(LETHE_MAX_MODEL_PARAMETERS).",
        )
    return params
