"""Experts on a GPU: their matrix products, and a whole layer in a decode step."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.elementwise import gates_gpu as gate
from baton.kernels.experts import routing_gpu as routing
from baton.kernels.experts.grouped_linear_gpu import grouped_linear, grouped_tiles
from baton.kernels.experts.moe import ExpertWeights
from baton.kernels.experts.moe import reference as by_token
from baton.kernels.experts.moe_gpu import moe
from baton.kernels.experts.routing import Routed, Routing, routed_to
from baton.kernels.experts.routing import reference as choose
from bench.gpu.cases import SMALL, Case, Sizes


def expert_cases(sizes: Sizes, device: str, dtype: torch.dtype = torch.bfloat16) -> list[Case]:
    """Products with the shape of Qwen3-30B-A3B: of few tokens, bound by memory, and of many."""
    is_small = sizes is SMALL
    num_columns, width = (96, 64) if is_small else (1536, 2048)
    weights = (torch.randn(sizes.num_experts, num_columns, width, device=device) * 0.02).to(dtype)
    made = []
    for num_pairs in (11, 90) if is_small else (512, 131_072):
        experts = torch.randint(0, sizes.num_experts, (num_pairs, 1), device=device)
        groups = routed_to(experts, torch.ones(experts.shape), sizes.num_experts)
        x = torch.randn(num_pairs, width, device=device).to(dtype)
        used = len(set(experts.flatten().tolist())) / sizes.num_experts
        num_bytes = used * weights.nbytes + x.nbytes + 2 * num_pairs * num_columns
        num_flops = 2.0 * num_pairs * num_columns * width
        ways = {"tiles": grouped_tiles, "as chosen": grouped_linear}
        made += [
            Case(
                name=f"experts, {name}, {num_pairs} pairs of {sizes.num_experts}",
                run=lambda x=x, way=way, stops=groups.stops: way(x, weights, stops),  # type: ignore[misc]
                expected=lambda x=x, stops=groups.stops: _by_expert(x, weights, stops),  # type: ignore[misc]
                tolerance=1e-2,
                num_bytes=num_bytes,
                num_flops=num_flops,
            )
            for name, way in ways.items()
        ]
    return [*made, _mixture(sizes, device, dtype)]


def _mixture(sizes: Sizes, device: str, dtype: torch.dtype) -> Case:
    """A layer of a few decoded tokens, from the router's logits on: bound by kernel launches and by
    reading the chosen experts' matrices."""
    tokens, choices, width, hidden = (3, 2, 64, 48) if sizes is SMALL else (8, 8, 2048, 768)
    count = sizes.num_experts
    x, logits = torch.randn(tokens, width, device=device), torch.randn(tokens, count, device=device)
    gate_up = torch.randn(count, 2 * hidden, width, device=device) * 0.05
    down = torch.randn(count, width, hidden, device=device) * 0.05
    x, gate_up, down = (tensor.to(dtype) for tensor in (x, gate_up, down))

    def run() -> Tensor:
        experts, shares = routing.choose_experts(
            logits, None, None, score="softmax", num_choices=choices,
            is_normalised=True, scale=1.0, groups=(1, 1, 1),
        )  # fmt: skip
        routed = Routed(experts, shares, *routing.sort_pairs(experts, count))
        return moe(
            x, (gate_up, down), (None, None), gate.silu_mul, routed, (None, None),
            is_input_scaled=False,
        )  # fmt: skip

    def expected() -> Tensor:
        rule = Routing(num_experts=count, num_choices=choices, is_normalised=True)
        routed = routed_to(*choose(logits, rule), count)
        return by_token(x, ExpertWeights(gate_up=gate_up, down=down), routed)

    num_chosen = min(count, tokens * choices)
    return Case(
        name=f"mixture of {choices} of {count} experts, {tokens} tokens",
        run=run,
        expected=expected,
        tolerance=3e-2,
        num_bytes=num_chosen / count * (gate_up.nbytes + down.nbytes),
    )


def _by_expert(x: Tensor, weights: Tensor, stops: Tensor) -> Tensor:
    ends = stops.tolist()
    parts = [
        x[start:stop].float() @ weight.float().T
        for start, stop, weight in zip([0, *ends[:-1]], ends, weights, strict=True)
    ]
    return torch.cat(parts).to(x.dtype)
