"""The weights of a loaded model, whatever its device keeps them as."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from baton.engine.layers.embedding import Embedding
from baton.engine.layers.linear import Linear
from baton.engine.layers.moe import DOWN, GATE_UP, Experts
from baton.kernels.experts.moe import ExpertWeight
from baton.kernels.experts.packed_experts import PackedExperts
from baton.kernels.experts.packed_quantized_experts import PackedQuantizedExperts
from baton.kernels.experts.quantized_experts import QuantizedExperts
from baton.kernels.products.weight import Weight

AnyWeight = Weight | ExpertWeight


def weights_of(model: nn.Module) -> Iterator[tuple[str, AnyWeight]]:
    """All weights and biases of a model, by name, as they are kept."""
    yield from model.named_parameters()
    for prefix, module in model.named_modules():
        if isinstance(module, Linear | Embedding) and not isinstance(module.weight, Tensor):
            yield f"{prefix}.weight", module.weight
        if isinstance(module, Experts) and not isinstance(module.down, Tensor):
            yield f"{prefix}.{GATE_UP}", module.gate_up
            yield f"{prefix}.{DOWN}", module.down


def as_tensor(weight: AnyWeight) -> Tensor:
    """[N, K], or [E, N, K] of experts."""
    if isinstance(weight, PackedExperts | PackedQuantizedExperts | QuantizedExperts):
        return torch.stack([weight.to_dense(expert) for expert in range(weight.shape[0])])
    return weight if isinstance(weight, Tensor) else weight.to_dense()
