"""Times of the matrix products of a layer of experts, beside their lower bounds.

    experts   32 of them, 8 a token, 2048 wide, feed-forwards of 768       (Qwen3-30B-A3B has 128)
    limits    with the same kind of weight: one row times a large matrix (bytes a second), and 512
              rows times an expert's matrix (FLOPs a second)

One thread, in CPU time, so that other processes disturb less. The lower bound is the larger of
bytes over the first limit and FLOPs over the second; with quantised weights the first includes
dequantising.

    python -m bench.kernels.experts [bfloat16] [int8] [int4]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.kernels.experts import packed_experts
from baton.kernels.experts import packed_quantized_experts as packed_quantized_experts
from baton.kernels.experts.moe import ExpertWeight, ExpertWeights, moe
from baton.kernels.experts.routing import Routed, Routing, route
from baton.kernels.products import int4_weight, int8_weight, packed_weight
from baton.kernels.products.linear import gated_linear, linear
from baton.kernels.products.weight import PreparedWeight
from bench.harness.command_line import benchmark_parser
from bench.harness.report import surroundings, table

NUM_EXPERTS, NUM_CHOICES, WIDTH, HIDDEN = 32, 8, 2048, 768
NUM_TOKENS = (1, 4, 16, 32, 256, 2048)
LARGE = 16 * HIDDEN * 2
MANY_ROWS = 512
DTYPE = torch.bfloat16
LEAST_S = 0.3
PACKERS: dict[str, Callable[..., PreparedWeight]] = {
    "bfloat16": packed_weight.pack,
    "int8": int8_weight.quantize,
    "int4": int4_weight.quantize,
}


@dataclass(frozen=True, slots=True)
class Limits:
    bytes_s: float
    flops_s: float


def best_s(run: Callable[[], object]) -> float:
    """The least CPU seconds of this thread, over as many runs as `LEAST_S` allows."""
    run()
    taken: list[float] = []
    while len(taken) < 3 or sum(taken) < LEAST_S:
        started = time.thread_time()
        run()
        taken.append(time.thread_time() - started)
    return min(taken)


def random(*shape: int) -> Tensor:
    numbers: Tensor = torch.randn(shape) / shape[-1] ** 0.5
    return numbers.to(DTYPE)


def measure_limits(kind: str) -> Limits:
    large, one = PACKERS[kind](random(LARGE, WIDTH)), random(1, WIDTH)
    expert = PACKERS[kind](random(2 * HIDDEN, WIDTH), is_gated=True)
    many = random(MANY_ROWS, WIDTH)
    flops = 2.0 * MANY_ROWS * 2 * HIDDEN * WIDTH
    return Limits(
        large.nbytes / best_s(lambda: linear(one, large)),
        flops / best_s(lambda: gated_linear(many, expert, "silu")),
    )


def make_experts(kind: str) -> ExpertWeights:
    def stack(num_rows: int, width: int, *, is_gated: bool) -> ExpertWeight:
        shape = NUM_EXPERTS, num_rows, width
        if kind == "bfloat16":
            kept: packed_experts.PackedExperts | packed_quantized_experts.PackedQuantizedExperts
            kept = packed_experts.empty(shape, DTYPE, is_gated=is_gated)
        else:
            kept = packed_quantized_experts.empty(kind, shape, DTYPE, is_gated=is_gated)
        for expert in range(NUM_EXPERTS):
            kept.put(expert, random(num_rows, width))
        return kept

    return ExpertWeights(
        gate_up=stack(2 * HIDDEN, WIDTH, is_gated=True), down=stack(WIDTH, HIDDEN, is_gated=False)
    )


def num_used(routed: Routed) -> int:
    return int((routed.stops.diff(prepend=routed.stops.new_zeros(1)) > 0).sum())


def row(kind: str, weights: ExpertWeights, num_tokens: int, limits: Limits) -> list[str | float]:
    x = random(num_tokens, WIDTH)
    routing = Routing(num_experts=NUM_EXPERTS, num_choices=NUM_CHOICES)
    logits = torch.randn(num_tokens, NUM_EXPERTS)
    routed = route(logits, routing)
    took = best_s(lambda: moe(x, weights, routed))
    used = num_used(routed)
    num_bytes = (weights.gate_up.nbytes + weights.down.nbytes) * used / NUM_EXPERTS
    flops = 6.0 * num_tokens * NUM_CHOICES * WIDTH * HIDDEN
    floor = max(num_bytes / limits.bytes_s, flops / limits.flops_s)
    route_us = best_s(lambda: route(logits, routing)) * 1e6
    return [
        f"{kind}, {num_tokens}",
        used,
        took * 1e3,
        num_bytes / took / 1e9,
        flops / took / 1e9,
        f"{100 * floor / took:.0f}%",
        route_us,
    ]


def report(kinds: list[str]) -> str:
    parts = []
    for kind in kinds:
        weights, before = make_experts(kind), measure_limits(kind)
        rows = [row(kind, weights, num_tokens, before) for num_tokens in NUM_TOKENS]
        after = measure_limits(kind)
        head = ["weights, tokens", "experts", "ms", "GB/s", "GFLOP/s", "of the floor", "route, us"]
        parts.append(
            f"{kind}: {before.bytes_s / 1e9:.1f} GB/s, {before.flops_s / 1e9:.0f} GFLOP/s at best "
            f"(afterwards {after.bytes_s / 1e9:.1f}, {after.flops_s / 1e9:.0f})\n\n"
            + table(head, rows)
        )
    return "\n\n".join(parts)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("kinds", nargs="*", help=f"of {', '.join(PACKERS)}; all by default")
    arguments = parser.parse_args()
    if unknown := set(arguments.kinds) - set(PACKERS):
        parser.error(f"no weights are called {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    print(f"{surroundings()}\n\n{report(arguments.kinds or list(PACKERS))}")


if __name__ == "__main__":
    main()
