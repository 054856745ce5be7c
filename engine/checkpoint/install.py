"""Giving the modules of a model their weights, each kept as its device multiplies it best.

A matrix of products on a CPU is packed, if there are operators for its dtype, and so is a table of
embeddings that serves as the head as well; everything else stays a parameter. Where they are to be
quantised, they are packed so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from baton.core.errors import InvalidConfig
from baton.engine.layers.embedding import Embedding
from baton.engine.layers.linear import Linear
from baton.kernels import int4_weight, int8_weight
from baton.kernels.cpu import operators
from baton.kernels.narrow_weight import to_int4, to_int8
from baton.kernels.packed_weight import can_pack, pack
from baton.kernels.weight import Weight

QUANTIZERS = {"int8": int8_weight.quantize, "int4": int4_weight.quantize}
"""By the name in the configuration."""
ON_GPUS: Mapping[str, Callable[[Tensor], Weight]] = {"int8": to_int8, "int4": to_int4}
HEADS = ("embed.weight", "head.weight")
"""These keep eight bits where others have four, which would cost as much as in all the others."""


def install(
    model: nn.Module, target: str, tensor: Tensor, device: str, quantize: str = "none"
) -> None:
    """Make a copy of `tensor` the weight, or the bias, that is called `target`."""
    prefix, _, name = target.rpartition(".")
    module = model.get_submodule(prefix)
    if quantize != "none" and name == "weight" and _is_multiplied(module):
        kept = _rounded(module, target, tensor, device, quantize)
    else:
        kept = _keep(module, name, tensor, device)
    delattr(module, name)
    setattr(module, name, nn.Parameter(kept, False) if isinstance(kept, Tensor) else kept)


def rounding_of(quantize: str, device: str, dtype: torch.dtype) -> str:
    """What products round: devices differ in scales, and operators round activations, torch not."""
    if quantize == "none":
        return quantize
    kind = torch.device(device).type
    if kind == "cpu" and not operators.runs(torch.empty(0, dtype=dtype)):
        kind = "torch"
    return f"{quantize} {kind}"


def _rounded(module: nn.Module, target: str, tensor: Tensor, device: str, quantize: str) -> Weight:
    """Raises InvalidConfig if it has not the shape for it."""
    way = "int8" if target in HEADS else quantize
    if device == "cpu":
        is_gated = isinstance(module, Linear) and module.is_gated
        return QUANTIZERS[way](tensor, is_gated=is_gated)
    try:
        return ON_GPUS[way](tensor.to(device))
    except ValueError as error:
        raise InvalidConfig(f"quantize {quantize!r}: {target}: {error}; int8 takes it") from error


def _keep(module: nn.Module, name: str, tensor: Tensor, device: str) -> Weight:
    if device == "cpu" and name == "weight" and can_pack(tensor) and _is_multiplied(module):
        return pack(tensor, is_gated=isinstance(module, Linear) and module.is_gated)
    return tensor.to(device, copy=True, memory_format=torch.contiguous_format)


def _is_multiplied(module: nn.Module) -> bool:
    return isinstance(module, Linear) or (isinstance(module, Embedding) and module.is_tied)
