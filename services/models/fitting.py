"""Whether uploaded files fit a run's specification, by their headers alone: no torch, and no tensor is read."""

from __future__ import annotations

from services.core.errors import Rejected
from services.models.spec import CUSTOM, Gpt2Params, params_of
from services.tensors.layout import FLOATING, Layout
from services.wire.v1.runs import ModelSpec


def check_init(model: ModelSpec, layout: Layout) -> None:
    """Refuse initial weights that have more or fewer numbers than the model. What a custom model looks like, and what
    is left of one with adapters, only the workers know."""
    params = params_of(model) if model.name != CUSTOM else None
    if params is None or (isinstance(params, Gpt2Params) and params.lora_rank):
        return
    wanted = params.num_parameters()
    found = sum(info.num_elements for info in layout.tensors if info.dtype in FLOATING)
    if found != wanted:
        raise Rejected(
            "invalid-run",
            f"init has {found} parameters and model {model.name} with these params has {wanted}; "
            "start from weights of the same model",
        )


def check_validation(layout: Layout) -> None:
    """Refuse a validation set without samples `x` and as many integer labels `y`."""
    tensors = {info.name: info for info in layout.tensors}
    x, y = tensors.get("x"), tensors.get("y")
    is_usable = (
        x is not None
        and y is not None
        and len(x.shape) >= 2
        and y.shape == x.shape[:1]
        and y.num_elements > 0
        and y.dtype[0] in "UI"
    )
    if not is_usable:
        has = ", ".join(f"{info.name} {info.dtype} {list(info.shape)}" for info in layout.tensors[:5])
        raise Rejected(
            "invalid-run", f"validation.data needs x (samples first) and integer y of equal length; it has {has}"
        )
