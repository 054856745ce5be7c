"""Experts chosen by token id (DeepSeek V4's first layers), with routing weights by a router.

    experts[t] = table[token of t]            shares by the router's scores, as in other layers

The load of these layers depends only on the frequencies of tokens.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from baton.core.errors import CheckpointError
from baton.engine.layers.moe import MoeFeedForward
from baton.engine.layers.router import Router
from baton.kernels.experts.routing import ByToken, Routed, Routing, route


class HashRouter(Router):
    integer_names: ClassVar[tuple[str, ...]] = ("table",)

    def __init__(self, width: int, routing: Routing, vocab_size: int) -> None:
        super().__init__(width, routing)
        every = torch.empty(vocab_size, routing.num_choices, dtype=torch.int64, device="meta")
        self.table = nn.Parameter(every, False)

    def check(self, name: str, table: Tensor) -> None:
        """Raises CheckpointError if the table has an invalid expert."""
        least, most, count = int(table.min()), int(table.max()), self.routing.num_experts
        if least < 0 or most >= count:
            raise CheckpointError(f"{name} names experts {least} to {most}, and there are {count}")

    def choose_for(self, tokens: Tensor, logits: Tensor) -> Routed:
        """tokens [T] int64, logits [T, E]."""
        return route(logits, self.routing, by_token=ByToken(tokens, self.table))


class HashMoeFeedForward(MoeFeedForward):
    router: HashRouter

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:  # type: ignore[override]  # one more
        """[T, width] -> [T, width]"""
        routed = self.router.choose_for(tokens, self.router(x))
        out: Tensor = self.experts(x, routed, self._shared(x))
        return out
