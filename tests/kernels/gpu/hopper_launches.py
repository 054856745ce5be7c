"""Launches of attention and of what surrounds it, with the shapes of real models, compiled only.

TRITON_INTERPRET=0 python -m tests.kernels.gpu.hopper_launches      one JSON line a kernel
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace

import torch
from tests.kernels.gpu.hopper_compiler import compiled_for_hopper
from tests.kernels.passes import sequences_of

from baton.kernels.attention.batch_invariant_attention_gpu import batch_invariant_attention
from baton.kernels.attention.gather_kv_gpu import gather_kv
from baton.kernels.attention.merge_attention_gpu import merge_attention
from baton.kernels.attention.paged_attention_gpu import paged_attention
from baton.kernels.attention.scoring import Scoring
from baton.kernels.cache_write.latent_write_gpu import latent_write
from baton.kernels.cache_write.rope_kv_write_gpu import rope_kv_write
from baton.kernels.cache_write.rotation import HeadNorm, LatentNorm
from baton.kernels.elementwise import gates_gpu as gate
from baton.kernels.experts.grouped_linear_gpu import grouped_tiles
from baton.kernels.experts.grouped_quantized_gpu import grouped_quantized
from baton.kernels.experts.moe_gpu import moe
from baton.kernels.experts.routing import Routed
from baton.kernels.experts.routing_gpu import choose_experts, sort_pairs
from baton.kernels.latent_attention.batch_invariant_mla_attention_gpu import (
    batch_invariant_mla_attention,
)
from baton.kernels.latent_attention.choose_tokens_gpu import scores
from baton.kernels.latent_attention.mla_attention_gpu import mla_attention
from baton.kernels.paging.arena_gpu import PagedCache
from baton.kernels.paging.block_copy_gpu import gather_blocks
from baton.kernels.paging.checksum_gpu import checksums
from baton.kernels.paging.quantized_arena import Arena, QuantizedArena
from baton.kernels.paging.sequences import Sequences
from baton.kernels.paging.table_runs_gpu import write_runs
from baton.kernels.paging.window import Chunks, Streaming
from baton.kernels.positions import rotary_angles_gpu as rotary_angles
from baton.kernels.products.fp8_rows_gpu import quantize_rows, round_rows
from baton.kernels.products.head_linear_gpu import head_linear as fixed_head_linear
from baton.kernels.products.linear_gpu import linear_tiles
from baton.kernels.products.low_rank_gpu import add_low_rank_
from baton.kernels.residual.layer_norm_gpu import layer_norm
from baton.kernels.residual.rms_norm_gpu import rms_norm
from baton.kernels.sampling.best_token_gpu import best_finite_token
from baton.kernels.sampling.draw_token_gpu import draw_token
from baton.kernels.sampling.token_filter import Filters

BLOCK_SIZE, CONTEXT, TOKENS = 16, 1000, 3
PROMPT = 40
"""New tokens of a request that is beside others in a pass."""
BFLOAT16, FP8 = torch.bfloat16, torch.float8_e4m3fn


def mixed_pass(tokens: int = TOKENS) -> Sequences:
    table = list(range(-(-CONTEXT // BLOCK_SIZE)))
    made = sequences_of([table, table], [(tokens, CONTEXT), (1, CONTEXT)], block_size=BLOCK_SIZE)
    return replace(made, block_tables=made.block_tables.int())


def arena_of(heads: int, width: int, items: torch.dtype | None) -> Arena:
    if items is None:
        return torch.empty(1, heads, 2, BLOCK_SIZE, width, dtype=BFLOAT16)
    unit_bytes = -(-2 * BLOCK_SIZE * (width + 4) // 64) * 64
    units = torch.empty(1, heads, unit_bytes, dtype=torch.uint8)
    return QuantizedArena(units, items, BLOCK_SIZE, width)


def attend(
    items: torch.dtype | None = None, width: int = 128, tokens: int = PROMPT, **rules: object
) -> None:
    q = torch.empty(tokens + 1, 32, width, dtype=BFLOAT16)
    paged_attention(q, PagedCache.of(arena_of(8, width, items)), mixed_pass(tokens), **rules)  # type: ignore[arg-type]


def verify(items: torch.dtype | None = None, width: int = 128, **rules: object) -> None:
    """Drafts of 8 tokens and the one before them: 36 rows of a KV head; and of 3: 16 rows."""
    attend(items, width, 9, **rules)
    attend(items, width, 4, **rules)


def attend_in_a_graph(items: torch.dtype | None = None) -> None:
    """A prompt and a token that is decoded, in a graph that holds any."""
    q = torch.empty(PROMPT + 1, 32, 128, dtype=BFLOAT16)
    sequences = replace(mixed_pass(PROMPT), is_captured=True)
    paged_attention(q, PagedCache.of(arena_of(8, 128, items)), sequences)


def attend_after_much(items: torch.dtype | None = None) -> None:
    """A short chunk behind a long context."""
    made = sequences_of([list(range(256))], [(PROMPT, 256 * BLOCK_SIZE)], block_size=BLOCK_SIZE)
    q = torch.empty(PROMPT, 32, 128, dtype=BFLOAT16)
    sequences = replace(made, block_tables=made.block_tables.int())
    paged_attention(q, PagedCache.of(arena_of(8, 128, items)), sequences)


def attend_in_one_order(items: torch.dtype | None = None) -> None:
    """The end of a prompt, and tokens that are decoded."""
    cache = PagedCache.of(arena_of(8, 128, items))
    for tokens in (PROMPT, 1):
        q = torch.empty(tokens + 1, 32, 128, dtype=BFLOAT16)
        batch_invariant_attention(q, cache, mixed_pass(tokens))


def multiply_in_one_order() -> None:
    x, weight = torch.empty(1, 4096, dtype=BFLOAT16), torch.empty(6144, 4096, dtype=BFLOAT16)
    linear_tiles(x, weight, is_batch_invariant=True)
    linear_tiles(x, weight, dtype=torch.float32, is_batch_invariant=True)


def attend_to_latents(num_heads: int, tokens: int = 1) -> None:
    table = list(range(-(-CONTEXT // BLOCK_SIZE)))
    sequences = sequences_of([table], [(tokens, CONTEXT)], block_size=BLOCK_SIZE)
    sequences = replace(sequences, block_tables=sequences.block_tables.int())
    q_latent = torch.empty(tokens, num_heads, 512, dtype=BFLOAT16)
    q_rope = torch.empty(tokens, num_heads, 64, dtype=BFLOAT16)
    arena = torch.empty(1, 1, BLOCK_SIZE, 576, dtype=BFLOAT16)
    mla_attention(q_latent, q_rope, arena, sequences, 0.1)


def attend_to_latents_in_one_order(num_heads: int) -> None:
    """With the products of heads before and behind it, whose matrices lie either way round."""
    sequences, keys = mixed_pass(PROMPT), torch.empty(num_heads, 128, 512, dtype=BFLOAT16)
    q = torch.empty(PROMPT + 1, num_heads, 192, dtype=BFLOAT16)
    q_latent = fixed_head_linear(q[..., :128], keys.transpose(1, 2))
    arena = torch.empty(1, 1, BLOCK_SIZE, 576, dtype=BFLOAT16)
    attended = batch_invariant_mla_attention(
        q_latent, q[..., 128:].contiguous(), arena, sequences, 0.1
    )
    fixed_head_linear(attended, keys)


def write(items: torch.dtype | None) -> None:
    weight, angles = torch.empty(128, dtype=BFLOAT16), torch.empty(TOKENS + 1, 64)
    rope_kv_write(
        torch.empty(TOKENS + 1, 48, 128, dtype=BFLOAT16),
        PagedCache.of(arena_of(8, 128, items)),
        mixed_pass(),
        head_norm=HeadNorm(weight, weight, 1e-6),
        rotation=(angles, angles),
    )


def write_latents(num_heads: int) -> None:
    angles = torch.empty(TOKENS + 1, 32)
    latent_write(
        torch.empty(TOKENS + 1, num_heads, 192, dtype=BFLOAT16),
        torch.empty(TOKENS + 1, 576, dtype=BFLOAT16),
        torch.empty(1, 1, BLOCK_SIZE, 576, dtype=BFLOAT16),
        mixed_pass(),
        norm=LatentNorm(torch.empty(512, dtype=BFLOAT16), 1e-6),
        rotation=(angles, angles),
        is_interleaved=True,
    )


def rows() -> None:
    x = torch.empty(4, 4096, dtype=BFLOAT16)
    rms_norm(x, x, x[0], 1e-6)
    layer_norm(x, None, x[0], x[0], 1e-6)
    gate.silu_mul(x)
    gate.gelu_tanh_mul(x)
    rotary_angles.rotary_angles(torch.arange(4), torch.empty(64), 1.0)
    out, lse = torch.empty(4, 32, 128, dtype=BFLOAT16), torch.empty(32, 4)
    merge_attention(out, lse, out, lse)


def multiply_few_rows() -> None:
    x, items = torch.empty(16, 4096, dtype=BFLOAT16), torch.empty(4096, 2048, dtype=torch.uint8)
    scales, zeros = torch.empty(4096, 32), torch.empty(4096, 32, dtype=torch.uint8)
    linear_tiles(x, items, scales, group=(1, 128), zeros=zeros)
    linear_tiles(x, items, scales, group=(1, 128))


def update(num_rows: int, rank: int) -> None:
    parts = (4096, 1024, 1024)
    down = torch.empty(2, len(parts), rank, 4096, dtype=BFLOAT16)
    up = torch.empty(2, rank, sum(parts), dtype=BFLOAT16)
    x, y = (torch.empty(num_rows, n, dtype=BFLOAT16) for n in (4096, sum(parts)))
    add_low_rank_(y, x, down, up, parts, torch.zeros(num_rows, dtype=torch.int64))


def multiply_by_experts(num_rows: int) -> None:
    x, stops = torch.empty(num_rows, 2880, dtype=BFLOAT16), torch.zeros(32, dtype=torch.int32)
    fp4 = torch.empty(32, 5760, 1440, dtype=torch.uint8, device="meta")
    powers = torch.empty(32, 5760, 90, dtype=torch.uint8, device="meta")
    grouped_quantized(x, fp4, powers, stops, group=(1, 32))
    x, fp8 = torch.empty(num_rows, 2048, dtype=BFLOAT16), torch.empty(32, 1536, 2048, dtype=FP8)
    grouped_quantized(x, fp8, torch.empty(32, 12, 16), stops, group=(128, 128))


def gather(items: torch.dtype | None) -> None:
    cache = PagedCache.of(arena_of(8, 128, items))
    gather_kv(cache, torch.zeros(8, dtype=torch.int32), range(5, 100), 512, BFLOAT16)


def sample() -> None:
    rows, vocab_size = 4, 152_064
    logits, whole = torch.empty(rows, vocab_size), torch.zeros(rows, dtype=torch.int64)
    shares = torch.empty(rows)
    filters = Filters(top_k=whole, top_p=shares, min_p=shares)
    draw_token(logits, whole, whole, shares, filters, torch.zeros(rows, 4, dtype=torch.int64))
    best_finite_token(logits)


def choose() -> None:
    q, weights = torch.empty(TOKENS + 1, 64, 128, dtype=BFLOAT16), torch.empty(TOKENS + 1, 64)
    arena = torch.empty(1, 1, BLOCK_SIZE, 128, dtype=BFLOAT16)
    scores(q, weights, arena, mixed_pass(), slice(0, TOKENS + 1))


def multiply_by_plain_experts(num_rows: int) -> None:
    x, stops = torch.empty(num_rows, 2048, dtype=BFLOAT16), torch.zeros(128, dtype=torch.int32)
    grouped_tiles(x, torch.empty(128, 1536, 2048, dtype=BFLOAT16), stops)


def mix_experts(groups: tuple[int, int, int], score: str, *, is_input_scaled: bool) -> None:
    num_tokens, num_experts, num_choices, width, hidden = 64, 256, 8, 2048, 768
    each = torch.empty(num_experts)
    experts, shares = choose_experts(
        torch.empty(num_tokens, num_experts), each, each,
        score=score, num_choices=num_choices, is_normalised=True, scale=2.5, groups=groups,
    )  # fmt: skip
    routed = Routed(experts, shares, *sort_pairs(experts, num_experts))
    x = torch.empty(num_tokens, width, dtype=BFLOAT16)
    gate_up = torch.empty(num_experts, 2 * hidden, width, dtype=BFLOAT16, device="meta")
    down = torch.empty(num_experts, width, hidden, dtype=BFLOAT16, device="meta")
    biases = gate_up[..., 0].contiguous(), down[..., 0].contiguous()
    shared = x, torch.empty(num_tokens, 1, dtype=BFLOAT16)
    mixture = gate.silu_mul if is_input_scaled else lambda y: gate.clamped_swiglu(y, 1.7, 7.0, 1.0)
    moe(x, (gate_up, down), biases, mixture, routed, shared, is_input_scaled=is_input_scaled)


def round_to_few_bits() -> None:
    x = torch.empty(16, 4096, dtype=BFLOAT16)
    round_rows(x, 128)
    quantize_rows(x, 4096, 16)


def move_blocks() -> None:
    units = torch.empty(8, 8192, dtype=torch.uint8)
    gather_blocks([units, units], torch.arange(4), torch.empty(2, 4, 8192, dtype=torch.uint8))
    checksums(units)
    write_runs(torch.zeros(2, 64, dtype=torch.int32), torch.zeros(9, dtype=torch.int32), 2, 3)


LAUNCHES: dict[str, Callable[[], None]] = {
    "bfloat16": attend,
    "fp8": lambda: attend(FP8),
    "int8": lambda: attend(torch.int8),
    "with chunks": lambda: attend(window=Chunks(8192)),
    "with first tokens": lambda: attend(window=Streaming(4096, 4)),
    "wide, with a window, capped and sinking": lambda: attend(
        width=256, scoring=Scoring(softcap=50.0), window=512, sinks=torch.empty(32)
    ),
    "drafts": verify,
    "drafts, fp8": lambda: verify(FP8),
    "drafts with first tokens": lambda: verify(window=Streaming(4096, 4)),
    "drafts, wide, with a window, capped and sinking": lambda: verify(
        width=256, scoring=Scoring(softcap=50.0), window=512, sinks=torch.empty(32)
    ),
    "in a graph": attend_in_a_graph,
    "short after much": attend_after_much,
    "short after much, fp8": lambda: attend_after_much(FP8),
    "in one order": attend_in_one_order,
    "in one order, fp8": lambda: attend_in_one_order(FP8),
    "products in one order": multiply_in_one_order,
    "latents, 128 heads": lambda: attend_to_latents(128),
    "latents, 16 heads": lambda: attend_to_latents(16),
    "latents, 16 heads of drafts": lambda: attend_to_latents(16, tokens=5),
    "latents in one order, 128 heads": lambda: attend_to_latents_in_one_order(128),
    "latents in one order, 16 heads": lambda: attend_to_latents_in_one_order(16),
    "write latents": lambda: write_latents(128),
    "write": lambda: write(None),
    "write fp8": lambda: write(FP8),
    "gather": lambda: gather(None),
    "gather fp8": lambda: gather(FP8),
    "rows": rows,
    "few rows by int4": multiply_few_rows,
    "updates of few rows": lambda: update(16, rank=16),
    "updates of many rows, high ranks": lambda: update(512, rank=256),
    "few pairs by quantized experts": lambda: multiply_by_experts(16),
    "many pairs by quantized experts": lambda: multiply_by_experts(4096),
    "few pairs by experts": lambda: multiply_by_plain_experts(16),
    "many pairs by experts": lambda: multiply_by_plain_experts(65536),
    "experts in groups": lambda: mix_experts((8, 4, 2), "sigmoid", is_input_scaled=False),
    "experts of scaled rows": lambda: mix_experts((1, 1, 1), "softmax", is_input_scaled=True),
    "sampling": sample,
    "choice of tokens": choose,
    "rounding": round_to_few_bits,
    "blocks": move_blocks,
}

if __name__ == "__main__":
    for title, launch in LAUNCHES.items():
        with compiled_for_hopper() as built:
            launch()
        for kernel in built:
            print(json.dumps({"launch": title, **asdict(kernel)}))
