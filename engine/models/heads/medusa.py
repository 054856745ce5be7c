"""Medusa (Cai et al. 2024): additional heads, each for one token further ahead.

    logits of token t + 2 + k = head[k](r(r(h[t])))      r(x) = x + silu(W x + b)

h is the model's output for token t, whose own head gives token t + 1. Heads do not see the tokens
between. S rows, D model width, V vocabulary.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from baton.engine.layers.linear import Linear
from baton.engine.mesh.split import Split
from baton.engine.models.heads.draft_head import End
from baton.engine.models.skeleton.decoder import Decoder
from baton.kernels.products.linear import logits


def checkpoint(num_layers: int) -> dict[str, tuple[str, ...]]:
    """Ours <- theirs; {i} counts heads."""
    names: dict[str, tuple[str, ...]] = {"heads.{i}.weight": (f"{{i}}.{num_layers}.weight",)}
    for layer in range(num_layers):
        for kind in ("weight", "bias"):
            names[f"blocks.{{i}}.{layer}.{kind}"] = (f"{{i}}.{layer}.linear.{kind}",)
    return names


class MedusaHeads(nn.Module):
    def __init__(
        self,
        width: int,
        vocab_size: int,
        *,
        num_heads: int,
        num_layers: int,
        has_own_heads: bool,
    ) -> None:
        """Heads without weights. Without their own output heads they use the model's."""
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                Linear(width, width, has_bias=True, split=Split.NONE) for _ in range(num_layers)
            )
            for _ in range(num_heads)
        )
        self.heads = nn.ModuleList(
            Linear(width, vocab_size) for _ in range(num_heads if has_own_heads else 0)
        )

    @property
    def shares(self) -> tuple[End, ...]:
        return () if self.heads else ("head",)

    def share(self, model: Decoder) -> None:
        """After loading: share the output head of `model`, unless the heads have their own."""
        self.model = model

    @property
    def num_heads(self) -> int:
        return len(self.blocks)

    def logits(self, hidden: Tensor, number: int) -> Tensor:
        """The model's outputs [S, D] -> float32 logits [S, V] of head `number`"""
        blocks = self.blocks[number]
        assert isinstance(blocks, nn.ModuleList)
        x = hidden
        for block in blocks:
            x = x + functional.silu(block(x))
        if not self.heads:
            return self.model.logits(x)
        head = self.heads[number]
        assert isinstance(head, Linear)
        return logits(x, head.weight)
