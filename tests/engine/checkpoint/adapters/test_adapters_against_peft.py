"""Logits with adapters against PEFT's: rows of two adapters and of none in the same passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.engine.model_runs import answer, assert_near, make_prompt, make_runner, scrambled_tables
from tests.far_apart import with_wide
from tests.peft_adapters import ATTENTION, FEED_FORWARD, make_adapter, peft_logits
from tests.tiny_checkpoints import FAMILIES, transformers_logits

from baton.engine.batch.batch import Chunk
from baton.engine.batch.row_adapters import RowAdapters
from baton.engine.checkpoint.load import load_model
from baton.engine.layers.linear import GatedLinear
from baton.kernels.elementwise.silu_mul import silu_mul
from baton.kernels.products.linear import linear

MLA = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj")
FALCON = ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h")
CASES: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "llama": (
        "llama",
        (*ATTENTION, *FEED_FORWARD),
        {"rank_pattern": {"k_proj": 2, "down_proj": 7}, "alpha_pattern": {"v_proj": 3}},
    ),
    "llama, some layers": ("llama", ("q_proj", "up_proj"), {"layers_to_transform": [1]}),
    "qwen2": ("qwen2", (*ATTENTION, *FEED_FORWARD), {}),
    "qwen3": ("qwen3", (*ATTENTION, *FEED_FORWARD), {}),
    "gpt2, fused, stabilised": ("gpt2", ("c_attn", "c_proj", "c_fc"), {"use_rslora": True}),
    "phi3, fused": ("phi3", ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"), {}),
    "falcon": ("falcon", FALCON, {}),
    "new falcon, rows by KV head": ("new falcon", FALCON, {}),
    "gemma2": ("gemma2", (*ATTENTION, *FEED_FORWARD), {}),
    "gemma3": ("gemma3", (*ATTENTION, *FEED_FORWARD), {}),
    "mixtral": ("mixtral", ATTENTION, {}),
    "gpt-oss": ("gpt-oss", ATTENTION, {}),
    "deepseek v3": ("deepseek v3", MLA, {}),
}
FAR_APART = {"llama", "gpt2, fused, stabilised", "new falcon, rows by KV head", "deepseek v3"}


@pytest.mark.parametrize("case", with_wide(CASES, FAR_APART))
def test_rows_of_several_adapters_have_the_logits_of_each(case: str, tmp_path: Path) -> None:
    family, modules, settings = CASES[case]
    base = FAMILIES[family](tmp_path / "base")
    folders = {
        "first": make_adapter(base, tmp_path / "first", modules, seed=1, **settings),
        "second": make_adapter(base, tmp_path / "second", modules[:1], seed=2, r=3),
    }
    prompt = make_prompt(23)
    expected = [
        peft_logits(base, folders["first"], prompt),
        transformers_logits(base, prompt),
        peft_logits(base, folders["second"], prompt),
    ]
    runner = make_runner(base, dtype="float32", adapters=folders)
    tables, numbers = scrambled_tables([23, 23, 23]), (1, 0, 2)

    for start, end in ((0, 13), (13, 21), (21, 22), (22, 23)):
        tokens = prompt[start:end]
        chunks = [
            Chunk(tokens, start, table, min(len(tokens), 3), number, number)
            for number, table in zip(numbers, tables, strict=True)
        ]
        rows = answer(runner, chunks).chunk(3)
        for found, wanted in zip(rows, expected, strict=True):
            assert_near(found, wanted[start:end][-3:])
    assert (expected[0] - expected[1]).abs().max() > 0.1 < (expected[2] - expected[1]).abs().max()


@pytest.mark.parametrize("quantize", ["none", "int8", "int4"])
def test_updates_are_added_before_a_gate_and_are_not_quantised(
    quantize: str, tmp_path: Path
) -> None:
    base = FAMILIES["llama"](tmp_path / "base", hidden_size=64, intermediate_size=96)
    folder = make_adapter(base, tmp_path / "first", FEED_FORWARD)
    loaded = load_model(base, dtype="float32", quantize=quantize, adapters={"first": folder})
    layer = loaded.model.get_submodule("blocks.0.ffn.gate_up")
    assert isinstance(layer, GatedLinear)
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    stored = load_file(folder / "adapter_model.safetensors")

    def update(name: str) -> torch.Tensor:
        a, b = (
            stored[f"base_model.model.model.layers.0.mlp.{name}.lora_{matrix}.weight"]
            for matrix in "AB"
        )
        return 12 / 4 * x @ a.T @ b.T

    numbers = torch.tensor([1, 0, 1])
    loaded.model.adapters.rows = RowAdapters(numbers, numbers[:0])
    updates = torch.cat([update("gate_proj"), update("up_proj")], dim=1) * numbers[:, None]

    with torch.inference_mode():
        found = layer(x)
        wanted = silu_mul(linear(x, layer.weight) + updates)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
