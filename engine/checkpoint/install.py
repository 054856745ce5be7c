"""Installs weights into a model's modules, in the layout in which the device multiplies fastest.

On a CPU with operators for the dtype, matrices are packed, including an embedding that is tied to
the head; everything else stays a parameter. With `quantize` they are packed in quantized form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from baton.core.errors import InvalidConfig
from baton.engine.layers.embedding import Embedding
from baton.engine.layers.grouped_linear import GroupedLinear
from baton.engine.layers.hash_moe import HashRouter
from baton.engine.layers.linear import Linear
from baton.engine.layers.mla import LatentHeads
from baton.engine.layers.moe import DOWN, GATE_UP
from baton.kernels.cpu import library, operators
from baton.kernels.experts import packed_experts
from baton.kernels.experts import packed_quantized_experts as packed_quantized_experts
from baton.kernels.experts import quantized_experts as quantized_experts
from baton.kernels.experts.moe import ExpertWeight
from baton.kernels.latent_attention.latent_heads import LatentWeights
from baton.kernels.products import int4_weight, int8_weight
from baton.kernels.products.batch_invariant_weight import BatchInvariantWeight
from baton.kernels.products.head_linear import BatchInvariantHeads, PackedHeads
from baton.kernels.products.packed_weight import can_pack, pack
from baton.kernels.products.quantized_weight import QuantizedWeight, to_int4, to_int8
from baton.kernels.products.weight import Weight

QUANTIZERS = {"int8": int8_weight.quantize, "int4": int4_weight.quantize}
"""Quantizers by the name in the configuration."""
AS_STORED = ("none", "wide")
"""Values of `quantize` that round no weight. `none` keeps quantized checkpoints quantized; `wide`
dequantizes them, too."""
ON_GPUS: Mapping[str, Callable[[Tensor], QuantizedWeight]] = {"int8": to_int8, "int4": to_int4}
"""The same for GPUs."""
HEADS = ("embed.weight", "head.weight")
"""These get int8 where all others get int4: int4 in the head alone would cost as much quality as in
all other weights together."""


def install(
    model: nn.Module,
    target: str,
    tensor: Tensor,
    device: str,
    quantize: str = "none",
    *,
    is_batch_invariant: bool = False,
) -> None:
    """Make a copy of `tensor` the weight or bias called `target`. `is_batch_invariant` prepares it
    for products whose rows do not depend on the rest of the batch (`deterministic`). Raises
    InvalidConfig if the tensor cannot be quantized."""
    prefix, _, name = target.rpartition(".")
    module = model.get_submodule(prefix)
    if isinstance(module, HashRouter) and name in module.integer_names:
        module.check(target, tensor)
    kept: Weight | LatentWeights | PackedHeads | BatchInvariantHeads
    if isinstance(module, LatentHeads):
        kept = module.prepared(tensor.to(device, copy=True), is_batch_invariant=is_batch_invariant)
    elif isinstance(module, GroupedLinear):
        kept = module.prepared(tensor.to(device, copy=True))
    elif quantize not in AS_STORED and name == "weight" and may_be_rounded(module):
        kept = _rounded(module, target, tensor, device, quantize)
        if isinstance(kept, QuantizedWeight):
            kept = replace(kept, is_batch_invariant=is_batch_invariant)
    else:
        kept = _keep(module, name, tensor, device, is_batch_invariant=is_batch_invariant)
    delattr(module, name)
    setattr(module, name, nn.Parameter(kept, False) if isinstance(kept, Tensor) else kept)


def install_expert(
    model: nn.Module,
    target: str,
    expert: int,
    tensor: Tensor,
    device: str,
    quantize: str = "none",
) -> None:
    """Copy `tensor` into slot `expert` of `target`, which holds the weights or biases of all
    experts of a layer. Memory for all is allocated with the first. Raises InvalidConfig if the
    tensor cannot be quantized."""
    prefix, _, name = target.rpartition(".")
    module = model.get_submodule(prefix)
    kept = getattr(module, name)
    given: Tensor | QuantizedWeight = tensor
    if device != "cpu" and tensor.dim() == 2 and quantize not in AS_STORED:
        given = _quantized_for_gpu(target, tensor, device, quantize)
    if isinstance(kept, Tensor) and kept.is_meta:
        if isinstance(given, QuantizedWeight):
            kept = quantized_experts.empty_like(len(kept), given, device)
        else:
            kept = _room_for_experts(module, name, tensor.dtype, device, quantize)
        delattr(module, name)
        setattr(module, name, kept)
    if isinstance(kept, Tensor):
        kept[expert].copy_(tensor)
    else:
        kept.put(expert, given)


def _room_for_experts(
    module: nn.Module, name: str, dtype: torch.dtype, device: str, quantize: str
) -> ExpertWeight:
    shape, is_gated = getattr(module, name).shape, name == GATE_UP
    if len(shape) == 3 and quantize not in AS_STORED:
        return packed_quantized_experts.empty(quantize, shape, dtype, is_gated=is_gated)
    if len(shape) == 3 and device == "cpu" and _can_pack_experts(module, dtype):
        return packed_experts.empty(shape, dtype, is_gated=is_gated)
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), False)


def _can_pack_experts(module: nn.Module, dtype: torch.dtype) -> bool:
    """Whether both matrices of the experts can be packed; one alone never is."""
    shapes = (getattr(module, name).shape for name in (GATE_UP, DOWN))
    return all(packed_experts.can_pack(shape, dtype) for shape in shapes)


def dtype_of(model: nn.Module, target: str, wanted: str) -> torch.dtype:
    """The dtype of parameter `target` in a model that computes in dtype `wanted`: some stay float32
    or are integers."""
    prefix, _, name = target.rpartition(".")
    module = model.get_submodule(prefix)
    if name in getattr(module, "integer_names", ()):
        return torch.int64
    is_wide = name in getattr(module, "float32_names", ())
    wide: torch.dtype = getattr(torch, wanted)
    return torch.float32 if is_wide else wide


def rounding_of(quantize: str, device: str, dtype: torch.dtype) -> str:
    """Part of the fingerprint: what matrix products round. It depends on the device, as scales
    differ, and as CPU operators round activations and torch does not."""
    if quantize in AS_STORED:
        return "none"
    kind = torch.device(device).type
    if kind == "cpu" and not operators.runs(torch.empty(0, dtype=dtype)):
        kind = "torch"
    return f"{quantize} {kind}"


def attention_of(device: str, dtype: torch.dtype) -> str:
    """Part of the fingerprint: how the CPU operators read 8-bit KV. They multiply the integers and
    then the scales, which rounds differently from dequantizing rows first.

    It is part of every model's fingerprint, whatever the dtype of its KV cache, because KV is also
    handed over between caches of different dtypes.
    """
    is_compiled = torch.device(device).type == "cpu" and operators.runs(torch.empty(0, dtype=dtype))
    return ", 8-bit KV by items" if is_compiled else ""


def order_of_sums(device: str, dtype: torch.dtype) -> str:
    """Part of the fingerprint: the order in which this kind of CPU adds up sums. KV is not shared
    between CPUs that differ in it. Empty on GPUs and for dtypes without operators."""
    if torch.device(device).type != "cpu" or dtype not in operators.SUFFIXES:
        return ""
    order = library.order_of_sums(is_bfloat16=dtype is torch.bfloat16)
    return f", sums of {order}" if order else ""


def _rounded(module: nn.Module, target: str, tensor: Tensor, device: str, quantize: str) -> Weight:
    """The quantized weight. Raises InvalidConfig if its shape does not allow it."""
    way = "int8" if target in HEADS else quantize
    if device == "cpu":
        is_gated = isinstance(module, Linear) and module.is_gated
        return QUANTIZERS[way](tensor, is_gated=is_gated)
    return _quantized_for_gpu(target, tensor, device, way)


def _quantized_for_gpu(target: str, tensor: Tensor, device: str, way: str) -> QuantizedWeight:
    """The quantized weight on a GPU. Raises InvalidConfig if its shape does not allow it."""
    try:
        return ON_GPUS[way](tensor.to(device))
    except ValueError as error:
        raise InvalidConfig(f"quantize {way!r}: {target}: {error}; set quantize to int8") from error


def _keep(
    module: nn.Module, name: str, tensor: Tensor, device: str, *, is_batch_invariant: bool
) -> Weight:
    if device == "cpu" and name == "weight" and can_pack(tensor) and _is_multiplied(module):
        return pack(tensor, is_gated=isinstance(module, Linear) and module.is_gated)
    kept = tensor.to(device, copy=True, memory_format=torch.contiguous_format)
    is_matrix = name == "weight" and _is_multiplied(module)
    return (
        BatchInvariantWeight(kept) if is_batch_invariant and device != "cpu" and is_matrix else kept
    )


def may_be_rounded(module: nn.Module) -> bool:
    """Whether `quantize` applies to the weight of `module`."""
    return _is_multiplied(module) and not (isinstance(module, Linear) and module.is_exact)


def _is_multiplied(module: nn.Module) -> bool:
    return isinstance(module, Linear) or (isinstance(module, Embedding) and module.is_tied)
