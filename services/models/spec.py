"""Parameters of the built-in models. No torch here: the API judges a run's model with this module alone."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, Final

from pydantic import Field, ValidationError, field_validator

from services.core.errors import Rejected
from services.wire.message import Message
from services.wire.v1.runs import ModelSpec

CUSTOM: Final = "custom"
MAX_PARAMETERS: Final = 2**30

Size = Annotated[int, Field(ge=1, le=65_536)]
Sizes = Annotated[tuple[Size, ...], Field(strict=False, max_length=32)]


class ClassifierParams(Message):
    input_shape: Annotated[tuple[Size, ...], Field(strict=False, min_length=1, max_length=8)]
    num_classes: Annotated[int, Field(ge=2, le=65_536)]

    def num_parameters(self) -> int:
        raise NotImplementedError


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
    def smallest_side(cls) -> int:
        raise NotImplementedError


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


PARAMS: Final[dict[str, type[ClassifierParams]]] = {"mlp": MlpParams, "lenet5": LeNet5Params, "cnn": CnnParams}


def validate(spec: ModelSpec) -> None:
    """Refuse a model that no worker could build. `custom` is known to the workers only and passes."""
    if spec.name != CUSTOM:
        params_of(spec)


def params_of(spec: ModelSpec) -> ClassifierParams:
    """The checked parameters of a built-in model."""
    if spec.name not in PARAMS:
        known = ", ".join((*PARAMS, CUSTOM))
        raise Rejected("invalid-run", f"There is no built-in model {spec.name!r}; known are {known}.")
    try:
        params = PARAMS[spec.name].model_validate(spec.params)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise Rejected("invalid-run", f"The params of model {spec.name} do not fit: {faults}.") from error
    if params.num_parameters() > MAX_PARAMETERS:
        raise Rejected(
            "invalid-run",
            f"Model {spec.name} would have {params.num_parameters()} parameters; the limit is {MAX_PARAMETERS}.",
        )
    return params
