"""GPT-2 (Radford et al., 2019) from transformers' configuration: as language model or classifier, whole or with LoRA.

Tensors have the names that transformers gives them, so that its files of weights fit. With LoRA (peft) the model's
state is that of the adapters and the head alone: nothing else travels, and the frozen rest is the same everywhere.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from services.core.errors import Rejected
from services.models.spec import Gpt2ClassifierParams, Gpt2Params

STD: Final = 0.02
FROZEN_SEED: Final = 0
"""The seed of what LoRA leaves alone, unless pretrained weights replace it: not the run's, because workers must agree
on it."""


class Gpt2(nn.Module):
    """`transformer` maps tokens [samples, positions] to an object with `last_hidden_state`. With a head the last
    token that is not padding is classified; without one, every position gets the logits of its next token."""

    def __init__(self, transformer: nn.Module, head: nn.Linear | None, *, padding: int, adapters_only: bool) -> None:
        super().__init__()
        self.transformer = transformer
        self.score = head
        self._padding = padding
        self._left_out: set[str] = set()
        if adapters_only:
            for name, param in transformer.named_parameters(prefix="transformer"):
                param.requires_grad_("lora_" in name)
                if "lora_" not in name:
                    self._left_out.add(name)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens.long()
        hidden: Tensor = self.transformer(input_ids=tokens).last_hidden_state
        if self.score is None:
            return linear(hidden, self.get_parameter("transformer.wte.weight"))
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        last = (positions * (tokens != self._padding)).argmax(1)
        logits: Tensor = self.score(hidden[torch.arange(len(tokens), device=tokens.device), last])
        return logits

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        state = super().state_dict(*args, **kwargs)
        return {name: tensor for name, tensor in state.items() if name not in self._left_out}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """What is frozen stays as it is."""
        frozen = {name: tensor for name, tensor in super().state_dict().items() if name in self._left_out}
        return super().load_state_dict({**frozen, **state_dict}, strict, assign)

    def initialise(self, generator: torch.Generator) -> None:
        """GPT-2's own scheme: normal with STD, smaller where a block adds to its input; adapters begin at zero."""
        frozen = torch.Generator().manual_seed(FROZEN_SEED)
        num_blocks = len({name.split(".")[2] for name, _ in self.named_parameters() if ".h." in name})
        for name, param in self.named_parameters():
            source = frozen if name in self._left_out else generator
            if "lora_B" in name or name.endswith(".bias"):
                nn.init.zeros_(param)
            elif param.ndim == 1:
                nn.init.ones_(param)  # LayerNorm
            else:
                adds = "c_proj" in name and "lora_" not in name
                nn.init.normal_(param, std=STD / math.sqrt(2 * num_blocks) if adds else STD, generator=source)


def build(params: Gpt2Params) -> nn.Module:
    transformers = _package("transformers")
    (length,) = params.input_shape
    config = transformers.GPT2Config(
        vocab_size=params.vocabulary(),
        n_positions=length,
        n_embd=params.width,
        n_layer=params.num_layers,
        n_head=params.num_heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    transformer = transformers.GPT2Model(config)
    if params.lora_rank:
        peft = _package("peft")
        lora = peft.LoraConfig(
            r=params.lora_rank, lora_alpha=2 * params.lora_rank, target_modules=["c_attn"], fan_in_fan_out=True
        )
        transformer = peft.inject_adapter_in_model(lora, transformer)
    is_classifier = isinstance(params, Gpt2ClassifierParams)
    head = nn.Linear(params.width, params.num_classes, bias=False) if is_classifier else None
    return Gpt2(transformer, head, padding=params.vocabulary() - 1, adapters_only=bool(params.lora_rank))


def _package(name: str) -> ModuleType:
    try:
        with torch.device("cpu"):  # models are built on the meta device, where an import must make nothing
            return importlib.import_module(name)
    except ImportError as error:
        raise Rejected(
            "invalid-run", f"This model needs the package {name}, of Lethe's extra `language`, where it is built."
        ) from error
