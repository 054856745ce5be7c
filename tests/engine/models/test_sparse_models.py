"""Sparse attention in a whole model: what is kept, what may be configured, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from bench.quantization.checkpoint_writer import LAYOUTS, write_layout
from tests.engine.checkpoint.quantized.test_quantized_checkpoints import plain_copy
from tests.engine.model_runs import (
    BLOCK_SIZE,
    assert_near,
    logits_in_chunks,
    make_prompt,
    make_runner,
    scrambled_tables,
)
from tests.tiny_checkpoints import make_deepseek_v32, make_glm_moe_dsa

from baton.core.errors import CheckpointError, InvalidConfig
from baton.engine.batch.batch import Chunk
from baton.engine.checkpoint.load import load_model, read_config
from baton.engine.layers.indexer import INDEX_KEYS
from baton.engine.mesh.mesh import Mesh
from baton.engine.models.config.model_config import ModelConfig
from baton.engine.models.registry import family_of
from baton.engine.sharding.cutting import share_of
from baton.engine.sharding.stages import first_layers
from baton.kernels.paging.layer_arenas import LayerArenas


def parsed(folder: Path, **changes: Any) -> ModelConfig:
    raw = json.loads((folder / "config.json").read_text())
    return family_of(raw["architectures"][0]).parse_config({**raw, **changes})


def indexed(config: ModelConfig) -> list[bool]:
    return [layer.has_index for layer in config.layers]


@pytest.fixture(scope="module")
def glm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_glm_moe_dsa(tmp_path_factory.mktemp("glm"))


def test_index_keys_are_a_side_cache_of_the_layers_that_have_an_index(glm: Path) -> None:
    runner, (table,) = make_runner(glm), scrambled_tables([20])

    runner.forward([Chunk(make_prompt(20), 0, table, 1)])

    arenas, layout = runner.cache.layers, runner.cache.layout
    assert [isinstance(arena, LayerArenas) for arena in arenas] == [True, False, False, True]
    assert (layout.num_layers, layout.num_planes) == (4, 6)
    assert layout.block_bytes == BLOCK_SIZE * 4 * (4 * (24 + 8) + 2 * 12)
    for arena in (arenas[0], arenas[3]):
        assert isinstance(arena, LayerArenas)
        written = arena.side_caches[INDEX_KEYS][table].any(-1).flatten()
        assert written[:20].all() and not written[20:].any()


def test_layers_with_an_index_are_told_in_three_ways(glm: Path) -> None:
    by_pattern = parsed(glm, indexer_types=None, index_topk_pattern="FSSF")
    by_step = parsed(
        glm,
        indexer_types=None,
        index_topk_freq=3,
        index_skip_topk_offset=1,
        num_hidden_layers=8,
        mlp_layer_types=None,
    )

    assert indexed(parsed(glm)) == indexed(by_pattern) == [True, False, False, True]
    assert indexed(by_step) == [True, False, False, True, False, False, True, False]
    assert indexed(parsed(glm, indexer_types=None)) == [True] * 4


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"indexer_types": ["shared", "full", "full", "full"]}, "must begin with 'full'"),
        ({"indexer_types": ["full", "half", "full", "full"]}, "must be 4 times"),
        ({"indexer_types": None, "index_topk_pattern": "FSX"}, "must be 4 times"),
        ({"q_lora_rank": None}, "q_lora_rank"),
        ({"index_head_dim": 4}, "index_head_dim"),
        ({"layer_types": ["full_attention"] * 4}, "layer_types"),
        ({"mlp_layer_types": ["sparse"] * 4}, "first_k_dense_replace"),
    ],
)
def test_what_cannot_be_is_refused(glm: Path, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        parsed(glm, **changes)


def test_a_stage_begins_with_a_layer_that_has_an_index(glm: Path) -> None:
    config = read_config(glm)

    assert list(first_layers(config)) == [0, 3]
    with pytest.raises(InvalidConfig, match=r"2 of the .* can be the first of a stage"):
        share_of(config, Mesh(pipeline=3))


def test_latents_and_index_keys_are_not_kept_in_eight_bits(glm: Path) -> None:
    with pytest.raises(InvalidConfig, match="latents"):
        load_model(glm).info.layout(BLOCK_SIZE, "int8")


def test_weights_in_blocks_of_eight_bits_are_what_their_scales_make_of_them(
    tmp_path: Path,
) -> None:
    prompt, original = make_prompt(20), make_deepseek_v32(tmp_path / "original")
    folder = write_layout(original, tmp_path / "fp8", LAYOUTS["fp8 blocks"])

    found = logits_in_chunks(make_runner(folder, dtype="float32"), prompt, 7)

    plain = plain_copy(folder, tmp_path / "plain")
    assert_near(found, logits_in_chunks(make_runner(plain, dtype="float32"), prompt, 7))


def test_without_operators_the_tokens_are_the_same(
    glm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = make_prompt(40)
    expected = logits_in_chunks(make_runner(glm), prompt, 7)
    monkeypatch.setattr("baton.kernels.cpu.operators.library", lambda: None)

    found = logits_in_chunks(make_runner(glm), prompt, 7)

    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
