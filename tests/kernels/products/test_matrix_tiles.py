"""Products by the matrix tiles of a CPU (AMX): emulated ones, and real ones where there are any."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from tests.kernels.tile_order import sums_of_tiles
from torch import Tensor

from baton.kernels.cpu.library import library
from baton.kernels.cpu.matrix_tiles import (
    Answer,
    Tiles,
    choose_tiles,
    tiles_in_use,
    use_tiles,
)
from baton.kernels.experts import packed_experts
from baton.kernels.experts import packed_quantized_experts as quantized_experts
from baton.kernels.experts.moe import SWIGLU, ExpertWeights, moe
from baton.kernels.experts.routing import Routing, route
from baton.kernels.products import int4_weight, int8_weight
from baton.kernels.products.head_linear import head_linear, pack_heads
from baton.kernels.products.linear import gated_linear, logits
from baton.kernels.products.packed_weight import pack
from baton.kernels.products.vocabulary_screen import VocabularyScreen
from baton.kernels.products.weight import Weight
from baton.kernels.sampling.best_token import best_token
from baton.kernels.sampling.draw_token import LEAST_P, Draws, draw_token
from baton.kernels.sampling.token_filter import Filters

LIBRARY = library()


def use(wanted: Tiles) -> None:
    assert LIBRARY is not None
    assert use_tiles(LIBRARY, wanted) is Answer.IN_USE


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("width", [2, 30, 34, 64, 300])
def test_sums_are_in_the_order_of_tiles(width: int) -> None:
    x, weight = random(35, width), random(70, width, seed=1)

    found = logits(x, pack(weight)).numpy()

    assert np.array_equal(found, sums_of_tiles(x, weight))


@pytest.mark.usefixtures("tiles")
def test_a_screened_head_gives_the_tokens_of_logits_by_tiles() -> None:
    packed = pack(random(4065, 130))
    for count in (1, 4, 5, 33):
        x = random(count, 130, seed=count)
        draws = Draws(
            rows=torch.arange(count),
            temperature=torch.full((count,), 4.0),
            filters=Filters(
                torch.full((count,), 20), torch.full((count,), 0.95), torch.full((count,), LEAST_P)
            ),
            streams=torch.arange(4 * count).view(count, 4),
        )

        best = VocabularyScreen(packed).tokens(x)
        drawn = VocabularyScreen(packed).tokens(x, draws)

        assert best is not None
        assert drawn is not None
        scores = packed.logits(x)
        tokens = best_token(scores)
        assert best.tokens == tokens.tolist()
        assert drawn.tokens == draw_token(scores, tokens, draws).tolist()


def test_sums_that_are_made_piece_by_piece_are_as_those_made_at_once(tiles: Tiles) -> None:
    x, wide = random(70, 1100), random(40, 1100, seed=1)
    weight, narrow = pack(wide), int8_weight.quantize(wide)
    use(Tiles.NONE)
    by_vectors = logits(x, narrow)

    use(tiles)

    found = logits(x, weight)
    assert np.array_equal(found.numpy(), sums_of_tiles(x, wide))
    for count in (32, 33, 70):
        assert torch.equal(logits(x[:count], weight), found[:count])
        assert torch.equal(logits(x[:count], narrow), by_vectors[:count])


@pytest.mark.usefixtures("tiles")
def test_what_is_denormal_counts_as_zero_and_becomes_zero() -> None:
    tiny, small = 2.0**-130, 2.0**-70
    weight = torch.zeros(4, 32, dtype=torch.bfloat16)
    weight[:, 0] = torch.tensor([2.0**100, 1.0, small, -small])
    x = torch.zeros(2, 32, dtype=torch.bfloat16)
    x[:, 0] = torch.tensor([tiny, small])

    found = logits(x, pack(weight))

    assert found.tolist() == [[0, 0, 0, 0], [2.0**30, small, 0, 0]]


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_row(value: float) -> None:
    x, weight = random(33, 66), pack(random(40, 66, seed=1))
    clean = logits(x, weight)
    x[16, 65] = value

    found = logits(x, weight)

    assert not found[16].isfinite().any()
    others = torch.arange(33) != 16
    assert torch.equal(found[others], clean[others])


@pytest.mark.usefixtures("tiles")
def test_a_row_has_the_same_bits_beside_any_number_of_rows() -> None:
    x, plain, gated = random(65, 130), random(50, 130, seed=1), random(64, 130, seed=2)
    weight, gate_up = pack(plain), pack(gated, is_gated=True)
    heads, by_head = pack_heads(random(3, 40, 64, seed=3)), random(65, 3, 64, seed=4)
    alone = [
        (logits(x[i][None], weight), gated_linear(x[i][None], gate_up, "silu"))
        for i in range(len(x))
    ]
    of_heads = torch.cat([head_linear(row[None], heads) for row in by_head])

    for count in range(1, 66):
        assert torch.equal(logits(x[:count], weight), torch.cat([y for y, _ in alone[:count]]))
        gates = gated_linear(x[-count:], gate_up, "silu")
        assert torch.equal(gates, torch.cat([y for _, y in alone[-count:]]))
        assert torch.equal(head_linear(by_head[:count], heads), of_heads[:count])


@pytest.mark.usefixtures("tiles")
def test_a_token_has_the_same_bits_from_experts_beside_any_number_of_tokens() -> None:
    gate_up = packed_experts.empty((4, 96, 64), torch.bfloat16, is_gated=True)
    down = packed_experts.empty((4, 64, 48), torch.bfloat16, is_gated=False)
    for expert in range(4):
        gate_up.put(expert, random(96, 64, seed=expert))
        down.put(expert, random(64, 48, seed=expert))
    weights = ExpertWeights(gate_up=gate_up, down=down, gating=SWIGLU)
    x, scores = random(80, 64), random(80, 4, seed=9).float()
    routing = Routing(num_experts=4, num_choices=2)

    def run(tokens: slice) -> Tensor:
        return moe(x[tokens], weights, route(scores[tokens], routing))

    alone = torch.cat([run(slice(i, i + 1)) for i in range(80)])
    for count in (2, 17, 33, 80):
        assert torch.equal(run(slice(count)), alone[:count])


@pytest.mark.parametrize("quantize", [int8_weight.quantize, int4_weight.quantize])
@pytest.mark.parametrize("width", [32, 96, 320])
def test_whole_numbers_are_exact_by_tiles_and_by_vectors(
    width: int, quantize: Callable[..., Weight], tiles: Tiles
) -> None:
    x, weight = random(70, width), quantize(random(77, width, seed=1))
    gate_up = quantize(random(44, width, seed=2), is_gated=True)
    use(Tiles.NONE)
    by_vectors, gates = logits(x, weight), gated_linear(x, gate_up, "silu")

    use(tiles)

    for count in range(1, 71):
        assert torch.equal(logits(x[:count], weight), by_vectors[:count])
    for count in (6, 7, 33, 70):
        assert torch.equal(gated_linear(x[:count], gate_up, "silu"), gates[:count])


@pytest.mark.parametrize("way", ["int8", "int4"])
def test_experts_of_few_bits_are_exact_by_tiles_and_by_vectors(way: str, tiles: Tiles) -> None:
    gate_up = quantized_experts.empty(way, (3, 96, 64), torch.bfloat16, is_gated=True)
    down = quantized_experts.empty(way, (3, 64, 48), torch.bfloat16, is_gated=False)
    for expert in range(3):
        gate_up.put(expert, random(96, 64, seed=expert))
        down.put(expert, random(64, 48, seed=expert))
    weights = ExpertWeights(gate_up=gate_up, down=down, gating=SWIGLU)
    x = random(900, 64)  # of an expert, more than a product takes at once
    routed = route(random(900, 3, seed=9).float(), Routing(num_experts=3, num_choices=2))
    use(Tiles.NONE)
    by_vectors = moe(x, weights, routed)

    use(tiles)

    assert torch.equal(moe(x, weights, routed), by_vectors)


@pytest.mark.usefixtures("leave_as_found")
@pytest.mark.parametrize(
    ("answer", "said"), [(2, "does not let this process"), (3, "failed a self-check"), (1, "")]
)
def test_without_sound_tiles_vectors_are_used_and_the_log_says_why(
    answer: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    choose_tiles(cast(ctypes.CDLL, SimpleNamespace(baton_use_tiles=lambda wanted: answer)))

    assert tiles_in_use() is Tiles.NONE
    assert len(caplog.records) == bool(said)
    assert said in caplog.text


@pytest.mark.usefixtures("leave_as_found")
def test_tiles_can_be_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_CPU_KERNELS", "vectors")

    choose_tiles(cast(ctypes.CDLL, SimpleNamespace()))  # is not asked for any
