"""DeepSeek V4: what is kept of a token, how its authors write it down, and what is refused."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.model_runs import (
    BLOCK_SIZE,
    answer,
    assert_near,
    logits_in_chunks,
    make_prompt,
    make_runner,
    scrambled_tables,
)
from tests.tiny_checkpoints import HEAVY, SPARSE, VOCAB_SIZE, make_deepseek_v4, transformers_logits
from torch import Tensor

from baton.core.errors import CheckpointError, InvalidConfig
from baton.engine.batch.batch import Chunk
from baton.engine.batch.static_batch import PassLimits, StaticBatch
from baton.engine.checkpoint.load import load_model, read_config
from baton.engine.layers.rope_scaling import YarnScaling
from baton.engine.mesh.mesh import Mesh
from baton.engine.models.registry import family_of
from baton.engine.passes.graph_start import PassGraphs, capture_passes
from baton.engine.passes.pass_memory import PassMemory
from baton.engine.sharding.cutting import share_of
from baton.kernels.products.mxfp4 import VALUES
from baton.platform.instruments.forward_trace.forward import trace_forward

if TYPE_CHECKING:
    from baton.gateway.text.tokenizer import TextTokenizer

PUBLISHED: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],  # the last is of a layer behind the last
    "compress_rope_theta": 160000,
    "eos_token_id": 1,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 64,
    "num_experts_per_tok": 6,
    "num_hash_layers": 3,
    "num_hidden_layers": 43,
    "num_key_value_heads": 1,
    "qk_rope_head_dim": 64,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "vocab_size": 129280,
}


def test_flash_has_as_many_parameters_as_its_authors_say() -> None:
    family = family_of("DeepseekV4ForCausalLM")

    model = family.build(family.parse_config(PUBLISHED))

    total = sum(parameter.numel() for parameter in model.parameters())
    assert round(total / 1e9) == 284


def test_flash_is_read_as_its_authors_write_it_down() -> None:
    config = family_of("DeepseekV4ForCausalLM").parse_config(PUBLISHED)

    rates = [layer.compression and layer.compression.windows.num_tokens for layer in config.layers]
    assert rates == [None, None, *[4, 128] * 20, 4]
    hashed = [bool(layer.moe and layer.moe.num_hashed_tokens) for layer in config.layers]
    assert hashed == [True] * 3 + [False] * 40
    window, entries = config.layers[0].rope, config.layers[2].rope
    assert window is not None and entries is not None
    assert (window.theta, window.scaling, window.rotary_dim) == (10000.0, None, 64)
    assert entries.theta == 160000.0 and isinstance(entries.scaling, YarnScaling)
    assert (entries.scaling.factor, entries.attention_factor) == (16.0, 1.0)
    assert config.max_context == 1048576


def test_the_cache_keeps_a_row_of_each_token_for_each_compressor(tmp_path: Path) -> None:
    layout = load_model(make_deepseek_v4(tmp_path)).info.layout(BLOCK_SIZE)

    assert (layout.num_vectors, layout.num_kv_heads, layout.head_dim) == (1, 1, 16)
    found = {side.name: (side.layers, side.width) for side in layout.side_caches}
    assert found == {
        "compressed by 4": ((1, 3), 64),
        "index of compressed by 4": ((1, 3), 32),
        "compressed by 6": ((2,), 32),
    }


@pytest.mark.parametrize("prefix_len", range(BLOCK_SIZE, 44, BLOCK_SIZE))
def test_blocks_of_another_request_are_as_good_as_ones_own(prefix_len: int, tmp_path: Path) -> None:
    """At every boundary, to the bit: of what was behind it nothing is left."""
    runner, prompt = make_runner(make_deepseek_v4(tmp_path)), make_prompt(50)
    other, own, alone = scrambled_tables([60, 50, 50])
    longer = prompt[:prefix_len] + make_prompt(60 - prefix_len, seed=1)
    runner.forward([Chunk(longer, 0, other, 0)])
    num_blocks = prefix_len // BLOCK_SIZE

    table = [*other[:num_blocks], *own[num_blocks:]]
    found = answer(runner, [Chunk(prompt[prefix_len:], prefix_len, table, 1)])

    assert torch.equal(found, answer(runner, [Chunk(prompt, 0, alone, 1)]))


def saved_as_published(folder: Path, into: Path) -> Path:
    """By the authors' names, in their bits: e4m3 in blocks, and experts in four bits."""
    tensors = {_published(name): tensor for name, tensor in _tensors(folder).items()}
    kept: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        stem = name.removesuffix(".weight")
        if re.search(r"experts\.\d+\.w[123]\.weight$", name):
            kept[name], kept[f"{stem}.scale"] = _in_four_bits(tensor)
        elif re.search(r"attn\.(wq_a|wq_b|wkv|wo_a|wo_b)\.weight$", name):
            kept[name], kept[f"{stem}.scale"] = _in_eight_bits(tensor)
        else:
            kept[name] = tensor
    kept["mtp.0.norm.weight"] = torch.ones(32)
    into.mkdir()
    save_file(kept, into / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    for key in ("layer_types", "compress_rates", "mlp_layer_types", "rope_parameters"):
        del config[key]
    published = {
        "compress_ratios": [0, 4, 128, 4, 0],
        "num_hash_layers": 2,
        "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 128},
        "expert_dtype": "fp4",
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "scale_fmt": "ue8m0",
            "weight_block_size": [128, 128],
        },
    }
    (into / "config.json").write_text(json.dumps(config | published))
    return into


def rounded(folder: Path, into: Path) -> Path:
    """The same numbers at full width, as transformers saves them."""
    into.mkdir()
    tensors = {}
    for name, tensor in _tensors(folder).items():
        if re.search(r"experts\.\d+\.w[123]\.weight$", name):
            codes, scale = _in_four_bits(tensor)
            values = torch.tensor((*VALUES, *(-value for value in VALUES)))
            bits = codes.view(torch.uint8).int()
            items = torch.stack((values[bits & 15], values[bits >> 4]), dim=-1).flatten(1)
            tensor = items * scale.float().repeat_interleave(32, 1)
        elif re.search(r"attn\.(wq_a|wq_b|wkv|wo_a|wo_b)\.weight$", name):
            items, scale = _in_eight_bits(tensor)
            tensor = items.float() * scale.float()
        tensors[name] = tensor
    save_file(tensors, into / "model.safetensors", metadata={"format": "pt"})
    (into / "config.json").write_text((folder / "config.json").read_text())
    return into


def _tensors(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = load_file(folder / "model.safetensors")
    return tensors


def _published(name: str) -> str:
    bare = name.removeprefix("model.")
    bare = bare.replace("hc_head.hc_", "hc_head_")
    return bare.replace("embed_tokens.", "embed.")


def _in_eight_bits(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Of one block, with a power of two as its scale."""
    power = torch.exp2((tensor.abs().max() / 448).log2().ceil())
    return (tensor / power).to(torch.float8_e4m3fn), power.view(1, 1).to(torch.float8_e8m0fnu)


def _in_four_bits(tensor: Tensor) -> tuple[Tensor, Tensor]:
    groups = tensor.view(len(tensor), -1, 32)
    powers = torch.exp2((groups.abs().amax(-1, keepdim=True) / 6).log2().ceil())
    scaled = groups / powers
    codes = (scaled.abs().unsqueeze(-1) - torch.tensor(VALUES)).abs().argmin(-1)
    codes = (codes + 8 * (scaled < 0)).flatten(1).to(torch.uint8)
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    return packed.view(torch.int8), powers.squeeze(-1).to(torch.float8_e8m0fnu)


def test_what_its_authors_publish_is_read_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    overrides = {"compress_rates": {SPARSE: 4, HEAVY: 128}, "moe_intermediate_size": 32}
    original, prompt = make_deepseek_v4(tmp_path / "original", **overrides), make_prompt(140)
    plain = rounded(original, tmp_path / "rounded")

    with caplog.at_level(logging.WARNING):
        runner = make_runner(
            saved_as_published(original, tmp_path / "published"), dtype="float32", quantize="wide"
        )
        found = logits_in_chunks(runner, prompt, 7)

    assert_near(found, transformers_logits(plain, prompt)[6::7])
    assert_near(found, logits_in_chunks(make_runner(plain), prompt, 7))


def test_without_compiled_operators_it_gives_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, prompt = make_deepseek_v4(tmp_path), make_prompt(40)
    monkeypatch.setattr("baton.kernels.cpu.operators.library", lambda: None)

    found = logits_in_chunks(make_runner(folder), prompt, 7)

    assert_near(found, transformers_logits(folder, prompt)[[*range(6, 40, 7), 39]])


def test_a_model_that_looks_at_lengths_gets_no_graphs_and_it_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = load_model(make_deepseek_v4(tmp_path))
    cache: Any = SimpleNamespace(device=torch.device("cuda"), spare_block=8)
    limits = PassLimits(graph_sizes=PassMemory().graph_sizes)  # as planned for such a model

    assert capture_passes(loaded.model, cache, StaticBatch(limits, BLOCK_SIZE)) == PassGraphs()
    assert "decode passes run without graphs" in caplog.text


def test_made_up_weights_send_a_token_to_different_experts(tmp_path: Path) -> None:
    runner = make_runner(make_deepseek_v4(tmp_path), load_format="dummy")

    logits = logits_in_chunks(runner, make_prompt(20), 7)

    assert logits.isfinite().all() and logits.std() > 0


def test_it_is_not_traced_and_says_why(tmp_path: Path) -> None:
    loaded, tokenizer = load_model(make_deepseek_v4(tmp_path)), cast("TextTokenizer", None)

    with pytest.raises(InvalidConfig, match=r"is not traced: .* several, and compresses tokens"):
        trace_forward(loaded, tokenizer, [3, 4], name="tiny", device="cpu")


def test_an_expert_that_there_is_not_is_refused(tmp_path: Path) -> None:
    folder = make_deepseek_v4(tmp_path)
    tensors = _tensors(folder)
    tensors["model.layers.1.ffn.gate.tid2eid"][5, 1] = 6
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(CheckpointError, match=r"router\.table names experts 0 to 6, .* are 6"):
        load_model(folder)


def test_tables_of_experts_are_whole_numbers(tmp_path: Path) -> None:
    folder = make_deepseek_v4(tmp_path)
    tensors = _tensors(folder)
    tensors["model.layers.1.ffn.gate.tid2eid"] = torch.zeros(VOCAB_SIZE, 2)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(CheckpointError, match=r"tid2eid is F32, not one of I64, I32"):
        load_model(folder)


@pytest.mark.parametrize(
    ("mesh", "reason"),
    [
        (Mesh(pipeline=2), "pipeline parallel 2: this model has several residual streams"),
        (Mesh(tensor=3), "tensor parallel 3 must divide `intermediate_size`, which is 20"),
    ],
)
def test_what_cannot_be_split_is_refused_with_the_reason(
    mesh: Mesh, reason: str, tmp_path: Path
) -> None:
    config = read_config(make_deepseek_v4(tmp_path))

    with pytest.raises(InvalidConfig, match=reason):
        share_of(config, mesh)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"scoring_func": "sigmoid"}, "`scoring_func` is 'sigmoid'; supported is 'sqrtsoftplus'"),
        ({"num_key_value_heads": 2}, "`num_key_value_heads` must be 1"),
        ({"compress_ratios": [0, 4]}, "`compress_ratios` must be 43 of"),
        ({"compress_ratios": [8] * 43}, "`compress_ratios` must be 43 of"),
        ({"layer_types": ["full_attention"] * 43}, "`layer_types` must be 43 of"),
        ({"compress_rates": {SPARSE: 0}}, "`compress_rates` must have a positive number"),
        ({"o_groups": 7}, "`o_groups` must divide"),
        ({"n_shared_experts": 2}, "`n_shared_experts` is 2; supported is 1"),
        ({"index_head_dim": 32}, "`index_head_dim` must be at least 64"),
    ],
)
def test_what_is_not_implemented_is_refused_by_its_key(change: dict[str, Any], what: str) -> None:
    with pytest.raises(CheckpointError, match=what):
        family_of("DeepseekV4ForCausalLM").parse_config({**PUBLISHED, **change})
