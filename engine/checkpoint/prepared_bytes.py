"""The bytes that a model's weights will take on a device, computed from its shapes.

Packed weights are as large as unpacked ones, except for padding to whole panels, which is not
counted; quantized weights are counted with their scales. A CPU keeps a matrix of latent attention
for each of its forms; on a GPU all forms look at the one that was loaded.
"""

from __future__ import annotations

import torch
from torch import nn

from baton.engine.checkpoint.install import AS_STORED, HEADS, dtype_of, may_be_rounded
from baton.engine.layers.linear import Linear
from baton.engine.layers.mla import LatentHeads
from baton.engine.layers.moe import GATE_UP, Experts
from baton.engine.models.skeleton.decoder import Decoder
from baton.kernels.products import int4_weight, int8_weight, vocabulary_screen

SIZES = {"int8": int8_weight.num_bytes, "int4": int4_weight.num_bytes}


def prepared_bytes(
    model: nn.Module,
    dtype: str,
    quantize: str = "none",
    *,
    device: str = "cpu",
    is_deterministic: bool = False,
) -> int:
    """The bytes of all weights of `model`, which needs no weights yet, served in `dtype` and
    quantized by `quantize`. `is_deterministic`: latent attention has one form."""
    has_one_copy = is_deterministic or device != "cpu"
    total = 0
    for target, parameter in model.named_parameters():
        prefix, _, name = target.rpartition(".")
        module = model.get_submodule(prefix)
        if quantize not in AS_STORED and name == "weight" and may_be_rounded(module):
            is_gated = isinstance(module, Linear) and module.is_gated
            num_rows, width = parameter.shape
            way = "int8" if target in HEADS else quantize
            total += SIZES[way](num_rows, width, is_gated=is_gated)
        elif quantize not in AS_STORED and isinstance(module, Experts) and parameter.dim() == 3:
            num_experts, num_rows, width = parameter.shape
            total += num_experts * SIZES[quantize](num_rows, width, is_gated=name == GATE_UP)
        elif isinstance(module, LatentHeads):
            num_prepared = module.num_prepared(has_one_copy=has_one_copy)
            total += num_prepared * dtype_of(model, target, dtype).itemsize
        else:
            total += parameter.numel() * dtype_of(model, target, dtype).itemsize
    return total


def screen_bytes(model: Decoder, dtype: str, quantize: str = "none") -> int:
    """The bytes of the copy of the output head with which an engine on one rank screens tokens
    (kernels/products/vocabulary_screen.py); 0 if it has none."""
    if quantize not in AS_STORED or not model.has_plain_head:
        return 0
    return vocabulary_screen.num_bytes(model.last.weight.shape, getattr(torch, dtype))
