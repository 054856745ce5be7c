"""DeepSeek's attention in a whole model: two forms, one cache."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.model_runs import (
    BLOCK_SIZE,
    answer,
    assert_near,
    make_prompt,
    make_runner,
    scrambled_tables,
)
from tests.tiny_checkpoints import (
    make_deepseek_v3,
    transformers_logits,
)

from baton.core.errors import InvalidConfig
from baton.engine.assemble import engine_around
from baton.engine.batch.batch import Chunk
from baton.engine.checkpoint.load import load_model, read_config
from baton.engine.checkpoint.prepared_bytes import prepared_bytes
from baton.engine.config import CacheConfig, EngineConfig
from baton.engine.layers.mla import LatentHeads
from baton.kernels.cpu.library import library
from baton.kernels.latent_attention import latent_attention
from baton.kernels.latent_attention.latent_attention import is_expanded_cheaper
from baton.kernels.latent_attention.latent_heads import LatentWeights

WIDE: dict[str, Any] = {"kv_lora_rank": 256, "rope_parameters": None, "initializer_range": 0.2}
"""Latents so wide that heads of their own are cheaper for prompts of this length."""
PROMPT_LEN = 110


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_deepseek_v3(tmp_path_factory.mktemp("wide"), **WIDE)


def is_expanded(folder: Path, query_len: int, context_len: int) -> bool:
    latent = read_config(folder).latent
    assert latent is not None
    return is_expanded_cheaper(latent.shape, query_len, context_len, item_bytes=4)


def test_a_long_prompt_is_expanded_and_gives_the_logits_of_transformers(wide: Path) -> None:
    assert is_expanded(wide, PROMPT_LEN, PROMPT_LEN)
    prompt, (table,) = make_prompt(PROMPT_LEN), scrambled_tables([PROMPT_LEN])

    logits = answer(make_runner(wide), [Chunk(prompt, 0, table, PROMPT_LEN)])

    assert_near(logits, transformers_logits(wide, prompt))


def test_what_was_absorbed_is_gone_on_with_expanded_and_the_other_way_round(wide: Path) -> None:
    prompt, (table,) = make_prompt(PROMPT_LEN + 40), scrambled_tables([PROMPT_LEN + 40])
    runner, expected = make_runner(wide), transformers_logits(wide, prompt)
    cuts = [0, 7, 14, 21, 14 + PROMPT_LEN, 29 + PROMPT_LEN, 40 + PROMPT_LEN]
    lengths = [stop - start for start, stop in pairwise(cuts)]
    forms = [is_expanded(wide, n, stop) for n, stop in zip(lengths, cuts[1:], strict=True)]
    assert forms == [False, False, False, True, False, False]

    logits = torch.cat(
        [
            answer(runner, [Chunk(prompt[start : start + n], start, table, 1)])
            for start, n in zip(cuts, lengths, strict=False)
        ]
    )

    assert_near(logits, expected[[stop - 1 for stop in cuts[1:]]])


@pytest.mark.skipif(library() is None, reason="no compiled operators here")
def test_deterministic_latents_have_one_form_however_a_prompt_is_cut(wide: Path) -> None:
    prompt, (table,) = make_prompt(PROMPT_LEN), scrambled_tables([PROMPT_LEN])
    runner = make_runner(wide, deterministic=True)
    at_once = answer(runner, [Chunk(prompt, 0, table, PROMPT_LEN)])
    in_chunks = [
        answer(runner, [Chunk(prompt[start:][:30], start, table, min(30, PROMPT_LEN - start))])
        for start in range(0, PROMPT_LEN, 30)
    ]

    assert torch.equal(torch.cat(in_chunks), at_once)
    assert_near(at_once, transformers_logits(wide, prompt))
    assert runner.info.fingerprint != make_runner(wide).info.fingerprint


@pytest.mark.skipif(library() is None, reason="no compiled operators here")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_decoded_token_has_the_same_bits_beside_a_prompt_that_is_expanded(
    wide: Path, dtype: str
) -> None:
    prompt, other = make_prompt(31), make_prompt(PROMPT_LEN, 1)
    tables = scrambled_tables([31, PROMPT_LEN])
    alone, beside = (make_runner(wide, dtype=dtype) for _ in range(2))
    for runner in (alone, beside):
        runner.forward([Chunk(prompt[:30], 0, tables[0], 0)])
    decode = Chunk(prompt[30:], 30, tables[0], 1)

    expected = answer(alone, [decode])
    together = answer(beside, [decode, Chunk(other, 0, tables[1], 1)])

    assert alone.taped is not None and alone.taped.fits([decode])
    assert beside.taped is not None
    assert not beside.taped.fits([decode, Chunk(other, 0, tables[1], 1)])
    assert torch.equal(together[:1], expected)


def test_both_forms_write_the_same_latents(wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first layer: those of later ones differ by what attention rounds."""
    prompt, (table,) = make_prompt(PROMPT_LEN), scrambled_tables([PROMPT_LEN])
    one, other = make_runner(wide), make_runner(wide)
    one.forward([Chunk(prompt, 0, table, 0)])

    monkeypatch.setattr(latent_attention, "MIN_EXPANDED", 1 << 30)
    other.forward([Chunk(prompt, 0, table, 0)])

    first, second = (runner.cache.planes[0][table] for runner in (one, other))
    torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-5)
    assert one.cache.planes[0].shape[1:] == (1, BLOCK_SIZE, 256 + 8)


def test_a_token_costs_one_latent_whatever_the_heads(tmp_path: Path) -> None:
    info = load_model(make_deepseek_v3(tmp_path)).info
    layout = info.layout(16)

    assert layout.is_latent
    assert layout.block_bytes == 3 * 16 * (24 + 8) * 4


@pytest.mark.skipif(library() is None, reason="no compiled operators here")
@pytest.mark.parametrize("is_deterministic", [False, True])
def test_the_memory_of_weights_is_told_from_shapes(tmp_path: Path, is_deterministic: bool) -> None:
    widths = {"kv_lora_rank": 64, "qk_nope_head_dim": 32, "v_head_dim": 64}  # whole panels
    loaded = load_model(make_deepseek_v3(tmp_path, **widths), deterministic=is_deterministic)
    heads = loaded.model.get_submodule("blocks.0.attn.kv_b")

    assert isinstance(heads, LatentHeads)
    kept = heads.weight
    assert isinstance(kept, LatentWeights)
    assert (kept.keys is None) == is_deterministic  # only the expanded form reads them
    num_bytes = sum(
        part.nbytes for part in (kept.absorb, kept.keys, kept.values) if part is not None
    )
    planned = LatentHeads(heads.shape)
    assert prepared_bytes(planned, "float32", is_deterministic=is_deterministic) == num_bytes


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8", "int4"])
def test_latents_in_few_bits_are_refused(tmp_path: Path, kv_dtype: Any) -> None:
    loaded = load_model(make_deepseek_v3(tmp_path))
    config = EngineConfig(cache=CacheConfig(kv_dtype=kv_dtype, num_blocks=4))

    with pytest.raises(InvalidConfig, match=r"cache\.kv_dtype .* set it to auto"):
        engine_around(loaded, config, "cpu")
