"""What a pass costs at least: against hand counts, and against torch's own counter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.tiny_checkpoints import (
    TINY,
    make_deepseek_v3,
    make_deepseek_v4,
    make_falcon,
    make_gemma3,
    make_glm_moe_dsa,
    make_gpt2,
    make_llama,
    make_mixtral,
    make_phi3,
    make_qwen2_moe,
    make_qwen3,
)
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from baton.engine.checkpoint.load import load_model
from baton.kernels.paging.window import Chunks, Streaming, first_seen, num_first_of
from baton.platform.instruments.ceilings import Ceilings
from baton.platform.instruments.pass_cost import (
    Chunk,
    Work,
    arithmetic_s,
    floor_s,
    pass_work,
    total,
)
from baton.platform.models.model_shape import AttentionShape, ModelShape, Part, shape_of

FAMILIES = (
    make_llama,
    make_qwen3,
    make_gemma3,
    make_phi3,
    make_gpt2,
    make_falcon,
    make_mixtral,
    make_qwen2_moe,
    make_deepseek_v4,
)
NUM_TOKENS = 7


def shape_in(folder: Path) -> ModelShape:
    loaded = load_model(folder, dtype="float32")
    return shape_of(loaded.model, loaded.info.layout(16), loaded.info.dtype)


def attention_of(window: int | None) -> ModelShape:
    return ModelShape(
        width=32,
        vocab_size=96,
        item_bytes=2,
        products=(),
        attentions=(
            AttentionShape(
                num_heads=4, num_kv_heads=2, head_dim=8, window=window, kv_token_bytes=64
            ),
        ),
        num_norms=1,
    )


def test_a_llama_costs_what_was_counted_by_hand(tmp_path: Path) -> None:
    shape = shape_in(make_llama(tmp_path))
    width, ffn, vocab, layers = 32, 48, 96, TINY["num_hidden_layers"]

    work = pass_work(shape, [Chunk(num_tokens=3, context=10), Chunk(num_tokens=1, context=5)])

    assert work[Part.QKV].flops == 2 * 4 * width * 64 * layers
    assert work[Part.OUT].flops == 2 * 4 * width * width * layers
    rows = 4 * (layers - 1) + 2  # of two outputs, too, in the last layer behind its attention
    assert work[Part.DOWN].flops == 2 * rows * width * ffn
    assert work[Part.HEAD].flops == 2 * 2 * width * vocab  # of two outputs
    pairs = (8 + 9 + 10) + 5
    assert work[Part.ATTENTION].flops == 4 * pairs * 32 * layers
    kv_token_bytes = 2 * 2 * 8 * 4  # K and V of two heads
    assert work[Part.ATTENTION].num_bytes == (15 * kv_token_bytes + 2 * 4 * 32 * 4) * layers
    assert work[Part.DOWN].num_bytes == (width * ffn * layers + rows * (width + ffn)) * 4


def test_latents_cost_what_was_counted_by_hand(tmp_path: Path) -> None:
    """Absorbed, as short chunks are. Packed weights are padded, so they are more than counted."""
    shape = shape_in(make_deepseek_v3(tmp_path, num_hidden_layers=1))
    heads, latent, turned, nope, value = 4, 24, 8, 16, 12

    work = pass_work(shape, [Chunk(num_tokens=2, context=300)])

    pairs, tokens = 299 + 300, 2
    absorbed = pairs * (2 * latent + turned) + tokens * latent * (nope + value)
    assert work[Part.ATTENTION].flops == 2 * heads * absorbed
    cached = 300 * (latent + turned) * 4
    moved = tokens * heads * (nope + turned + value) * 4
    assert work[Part.ATTENTION].num_bytes >= cached + moved + heads * latent * (nope + value) * 4
    queries = 32 * 20 + 20 * heads * (nope + turned)
    assert work[Part.QKV].flops == 2 * tokens * (queries + 32 * (latent + turned))


def test_attention_to_chosen_tokens_costs_what_was_counted_by_hand(tmp_path: Path) -> None:
    """Two layers, of which one scores all tokens and both read five of them."""
    folder = make_glm_moe_dsa(tmp_path, num_hidden_layers=2, indexer_types=["full", "shared"])
    heads, latent, turned, nope, value = 4, 24, 8, 16, 12

    work = pass_work(shape_in(folder), [Chunk(num_tokens=2, context=300)])[Part.ATTENTION]

    absorbed = 2 * 5 * (2 * latent + turned) + 2 * latent * (nope + value)
    scored = (299 + 300) * 16 * 12
    assert work.flops == 2 * (2 * heads * absorbed + scored)
    read = 2 * 2 * 5 * (latent + turned) * 4 + 300 * 12 * 4
    moved = 2 * (2 * heads * (nope + turned + value) + heads * latent * (nope + value)) * 4
    assert work.num_bytes >= read + moved  # packed weights are padded


@pytest.mark.parametrize("make", FAMILIES)
def test_products_cost_what_torch_counts(make: object, tmp_path: Path) -> None:
    folder = make(tmp_path)  # type: ignore[operator]
    model = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", experts_implementation="eager"
    )
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.arange(NUM_TOKENS)[None])
    counts = counter.get_flop_counts()["Global"]
    products = sum(count for op, count in counts.items() if "bmm" not in str(op))

    work = pass_work(shape_in(folder), [Chunk(num_tokens=1, context=1)] * NUM_TOKENS)

    parts = (Part.QKV, Part.OUT, Part.ROUTER, Part.DOWN, Part.HEAD)
    ours = sum(work[part].flops for part in parts if part in work)
    gate_up = sum(work[part].flops for part in (Part.EXPERTS, Part.GATE_UP) if part in work)
    assert ours + gate_up == pytest.approx(products, rel=0.05)  # activations are counted, too
    assert ours < products


def test_of_experts_a_pass_reads_those_that_its_tokens_choose(tmp_path: Path) -> None:
    shape = shape_in(make_mixtral(tmp_path, num_local_experts=8, num_experts_per_tok=2))
    of_all = 2 * 8 * 3 * 32 * 48 * 4  # layers, experts, matrices; a token reads and writes little

    def read_by(num_tokens: int) -> float:
        work = pass_work(shape, [Chunk(num_tokens=1, context=1)] * num_tokens)[Part.EXPERTS]
        return work.num_bytes - num_tokens * 2 * 2 * 4 * (32 + 48 + 48 + 32)

    assert read_by(1) == of_all * 2 / 8
    assert read_by(2) == pytest.approx(of_all * (1 - (6 / 8) ** 2))
    assert read_by(100) == pytest.approx(of_all)


WINDOWS = [1, 3, 9, 20, *map(Chunks, (1, 5, 6, 12)), Streaming(3, 2), Streaming(7, 4)]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("num_tokens", [1, 2, 8, 12])
def test_a_window_hides_what_is_further_back(
    window: int | Chunks | Streaming, num_tokens: int
) -> None:
    context = 12
    first = context - num_tokens
    seen_by = [
        {*range(first_seen(window, last), last + 1), *range(min(last, num_first_of(window)))}
        for last in range(first, context)
    ]

    chunk = Chunk(num_tokens=num_tokens, context=context)

    assert chunk.num_pairs(window) == sum(map(len, seen_by))
    assert chunk.num_seen(window) == len(set().union(*seen_by))


def test_decoding_reads_weights_once_and_kv_for_each_request(tmp_path: Path) -> None:
    shape = shape_in(make_llama(tmp_path))

    one = pass_work(shape, [Chunk(1, 1000)])
    many = pass_work(shape, [Chunk(1, 1000)] * 10)

    assert many[Part.QKV].num_bytes < 2 * one[Part.QKV].num_bytes
    assert many[Part.ATTENTION].num_bytes == 10 * one[Part.ATTENTION].num_bytes


def test_each_part_is_bound_by_what_takes_it_longer() -> None:
    ceilings = Ceilings(read_bytes_s=10.0, flops_s=100.0)
    work = {Part.QKV: Work(flops=1000, num_bytes=10), Part.NORMS: Work(flops=10, num_bytes=50)}

    assert ceilings.ridge == 10.0
    assert floor_s(work, ceilings) == 10.0 + 5.0
    assert total(work) == Work(1010, 60)


def test_a_part_that_multiplies_narrow_weights_has_a_rate_of_its_own() -> None:
    ceilings = Ceilings(read_bytes_s=10.0, flops_s=100.0, flops_s_by_part={Part.QKV: 200.0})
    work = {Part.QKV: Work(flops=1000, num_bytes=10), Part.ATTENTION: Work(flops=100, num_bytes=5)}

    assert (ceilings.balance(Part.QKV), ceilings.balance(Part.ATTENTION)) == (20.0, 10.0)
    assert floor_s(work, ceilings) == arithmetic_s(work, ceilings) == 5.0 + 1.0


def test_a_model_without_layers_has_no_products() -> None:
    work = pass_work(attention_of(None), [Chunk(1, 1)])

    assert Part.QKV not in work
    assert Part.ATTENTION in work
