"""Mixture-of-experts feed-forward (Shazeer et al. 2017), with or without a shared expert.

    router -> experts [T, C], shares [T, C], and where the pairs of each expert end
    out = sum over the choices of  share * expert(x)   +   shared(x) * (1 or sigmoid(gate(x)))

`Routed.stops` has the number of tokens of each expert.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from baton.engine.layers.feed_forward import GatedFeedForward, LimitedFeedForward
from baton.engine.layers.linear import ExactLinear
from baton.engine.layers.router import Router
from baton.engine.mesh.expert_exchange import ExpertExchange, weighted
from baton.engine.mesh.ranks import ALONE, Ranks
from baton.kernels.experts.expert_slots import ExpertSlots, own_pairs, slot_of_pairs
from baton.kernels.experts.moe import ExpertWeight, ExpertWeights, Gating, Shared, moe, with_shared
from baton.kernels.experts.routing import Routed, routed_to

GATE_UP, DOWN, DOWN_BIAS = "gate_up", "down", "down_bias"


class Experts(nn.Module):
    """All or some experts of a layer: gated feed-forwards of one shape."""

    gate_up: ExpertWeight
    down: ExpertWeight
    gate_up_bias: nn.Parameter | None
    down_bias: nn.Parameter | None

    def __init__(  # noqa: PLR0913  # what config.json says of experts
        self,
        num_experts: int,
        width: int,
        hidden_width: int,
        gating: Gating,
        *,
        has_bias: bool = False,
        is_input_scaled: bool = False,
        num_slots: int | None = None,
    ) -> None:
        """`num_slots`: experts kept on this rank, if not all."""
        super().__init__()
        self.num_experts = num_experts
        self.num_slots = num_experts if num_slots is None else num_slots
        self.hidden_width = hidden_width
        self.gating = gating
        self.ranks: Ranks = ALONE
        """Ranks that each have a part of every expert, or some experts."""
        self.slots: ExpertSlots | None = None
        """Placement of whole experts on ranks, if used."""
        self.exchange: ExpertExchange | None = None
        """Exchange with ranks that have other tokens (data parallelism)."""
        self.is_input_scaled = is_input_scaled
        self.is_batch_invariant = False
        """Whether a GPU's results must not depend on the batch."""
        count = self.num_slots
        self.gate_up = _nothing_yet(count, 2 * hidden_width, width)
        self.down = _nothing_yet(count, width, hidden_width)
        self.gate_up_bias = _nothing_yet(count, 2 * hidden_width) if has_bias else None
        self.down_bias = _nothing_yet(count, width) if has_bias else None

    @property
    def weights(self) -> ExpertWeights:
        return ExpertWeights(
            gate_up=self.gate_up,
            down=self.down,
            gate_up_bias=self.gate_up_bias,
            down_bias=self.down_bias,
            gating=self.gating,
            is_input_scaled=self.is_input_scaled,
            is_batch_invariant=self.is_batch_invariant,
        )

    def forward(self, x: Tensor, routed: Routed, shared: Shared | None = None) -> Tensor:
        """x [T, width] -> [T, width]"""
        weights = self.weights
        if self.exchange is not None:
            return self.ranks.all_reduce_(self._exchanged(self.exchange, x, routed, shared))
        if self.ranks.size == 1:
            return moe(x, weights, routed, shared)
        own = routed if self.slots is None else own_pairs(routed, self.slots)
        return self.ranks.all_reduce_(moe(x, weights, own, shared))

    def join(self, num_choices: int) -> None:
        """Compute experts for other ranks' tokens when this rank has none."""
        assert self.exchange is not None and self.slots is not None, "there are no other tokens"
        device = self.slots.slots.device
        x = torch.empty(0, self.gate_up.shape[2], dtype=self.gate_up.dtype, device=device)
        nowhere = torch.empty(0, num_choices, dtype=torch.int32, device=device)
        self.exchange(x, nowhere, self.num_slots, self._of_slots)

    def expect(self, max_tokens: int) -> None:
        """Announce a pass with other engines, of which none has more than `max_tokens`."""
        assert self.exchange is not None, "there are no other engines"
        self.exchange.max_tokens = max_tokens

    def _exchanged(
        self, exchange: ExpertExchange, x: Tensor, routed: Routed, shared: Shared | None
    ) -> Tensor:
        """Outputs of this rank's own tokens; for other tokens only the shared expert's part."""
        assert self.slots is not None, "experts are sent tokens where each rank has some of them"
        self.slots.add_loads(routed)
        own = exchange.share.run(len(x))
        rows, shares = x[own], routed.shares[own]
        slots = slot_of_pairs(routed.experts[own], shares, self.slots)
        scales = None
        if self.is_input_scaled:
            scales, shares = shares, torch.ones_like(shares)
        outs = exchange(rows, slots, self.num_slots, self._of_slots, scales)
        y = torch.zeros_like(x, dtype=torch.float32)
        y[own] = weighted(outs, shares)
        return with_shared(y, shared).to(x.dtype)

    def _of_slots(self, rows: Tensor, slots: Tensor) -> Tensor:
        """rows [P, width], each through the expert of its slot on this rank; rows of other slots
        are undefined."""
        choices = slots[:, None].to(torch.int32)
        ones = torch.ones_like(choices, dtype=torch.float32)
        routed = replace(routed_to(choices, ones, self.num_slots), is_partial=True)
        return moe(rows, self.weights, routed)


def _nothing_yet(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, device="meta"), False)


class MoeFeedForward(nn.Module):
    """`shared`: the expert of all tokens, `shared_gate`: its weight. With tensor ranks, its summand
    is reduced together with those of the routed experts.
    """

    def __init__(
        self,
        *,
        router: Router,
        experts: Experts,
        shared: GatedFeedForward | LimitedFeedForward | None = None,
        shared_gate: ExactLinear | None = None,
    ) -> None:
        super().__init__()
        self.router = router
        self.experts = experts
        self.shared = shared
        self.shared_gate = shared_gate
        if shared is not None:
            assert shared.down.bias is None, "of a sum: one rank would have to add it"
            shared.down.gives_summands = True

    def forward(self, x: Tensor) -> Tensor:
        """[T, width] -> [T, width]; T is 0 where a pass of a prompt wants no outputs."""
        if len(x) == 0 and self.experts.exchange is None:
            return x
        routed = self.router.choose(self.router(x))
        out: Tensor = self.experts(x, routed, self._shared(x))
        return out

    def join(self) -> None:
        """Take part in a pass without tokens."""
        self.experts.join(self.router.routing.num_choices)

    def _shared(self, x: Tensor) -> Shared | None:
        if self.shared is None:
            return None
        return Shared(self.shared(x), None if self.shared_gate is None else self.shared_gate(x))
