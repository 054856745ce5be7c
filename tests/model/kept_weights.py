"""The weights of a loaded model, whatever its device keeps them as."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from baton.engine.layers.embedding import Embedding
from baton.engine.layers.linear import Linear
from baton.kernels.weight import Weight


def weights_of(model: nn.Module) -> Iterator[tuple[str, Weight]]:
    """All weights and biases of a model, by name, as they are kept."""
    yield from model.named_parameters()
    for prefix, module in model.named_modules():
        if isinstance(module, Linear | Embedding) and not isinstance(module.weight, Tensor):
            yield f"{prefix}.weight", module.weight


def as_tensor(weight: Weight) -> Tensor:
    """[N, K]"""
    return weight if isinstance(weight, Tensor) else weight.unpacked()
