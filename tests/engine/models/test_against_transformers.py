"""Our logits against those of transformers, at every position, however a prompt is computed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.engine.model_runs import (
    BLOCK_SIZE,
    answer,
    logits_in_chunks,
    make_prompt,
    make_runner,
    scrambled_tables,
)
from tests.exact_logits import assert_rounded_only, exact_logits, times_the_bound
from tests.far_apart import with_wide
from tests.tiny_checkpoints import (
    DEEPSEEK_YARN,
    FAMILIES,
    HEAVY,
    SPARSE,
    WINDOW,
    make_deepseek_v2,
    make_deepseek_v2_lite,
    make_deepseek_v3,
    make_deepseek_v4,
    make_deepseek_v32,
    make_falcon,
    make_gemma2,
    make_gemma3,
    make_glm_moe_dsa,
    make_gpt2,
    make_gpt_oss,
    make_llama,
    make_llama4,
    make_mistral,
    make_mixtral,
    make_new_falcon,
    make_phi3,
    make_qwen2,
    make_qwen2_moe,
    make_qwen3,
    make_qwen3_moe,
    transformers_greedy,
    transformers_logits,
)

from baton.engine.batch.batch import Chunk
from baton.engine.checkpoint.load import load_model
from baton.engine.memory.kv_cache import KvCache
from baton.engine.passes.runner import ModelRunner

VARIANTS: dict[str, tuple[Callable[..., Path], dict[str, Any]]] = {
    "llama": (make_llama, {}),
    "llama, multi-head": (make_llama, {"num_key_value_heads": 4}),
    "llama, multi-query": (make_llama, {"num_key_value_heads": 1}),
    "llama, tied": (make_llama, {"tie_word_embeddings": True}),
    "llama, wide heads": (make_llama, {"head_dim": 16}),
    "llama, sharded": (make_llama, {"max_shard_size": "10KB"}),
    "llama, biases": (make_llama, {"attention_bias": True, "mlp_bias": True}),
    "mistral": (make_mistral, {}),
    "mistral, no window": (make_mistral, {"sliding_window": None}),
    "qwen2": (make_qwen2, {}),
    "qwen2, no window": (make_qwen2, {"use_sliding_window": False, "tie_word_embeddings": True}),
    "qwen3": (make_qwen3, {}),
    "qwen3, wide, tied": (make_qwen3, {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3, window, biases": (
        make_qwen3,
        {
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "gemma2": (make_gemma2, {}),
    "gemma2, no caps": (
        make_gemma2,
        {"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True},
    ),
    "gemma3": (make_gemma3, {}),
    "gemma3, capped, untied": (
        make_gemma3,
        {"final_logit_softcapping": 8.0, "tie_word_embeddings": False},
    ),
    "phi3": (make_phi3, {}),
    "gpt2": (make_gpt2, {}),
    "gpt2, odd scales": (
        make_gpt2,
        {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False, "n_inner": None},
    ),
    "gpt2, relu, untied": (
        make_gpt2,
        {"activation_function": "relu", "tie_word_embeddings": False},
    ),
    "falcon": (make_falcon, {}),
    "falcon, multi-head, biases": (make_falcon, {"multi_query": False, "bias": True}),
    "new falcon": (make_new_falcon, {}),
    "gpt-oss": (make_gpt_oss, {}),
    "gpt-oss, wide heads, no biases, one expert": (
        make_gpt_oss,
        {"head_dim": 16, "attention_bias": False, "num_experts_per_tok": 1},
    ),
    "mixtral": (make_mixtral, {}),
    "mixtral, no window, one expert": (
        make_mixtral,
        {"sliding_window": None, "num_experts_per_tok": 1},
    ),
    "qwen2 moe": (make_qwen2_moe, {}),
    "qwen2 moe, every other layer, windows": (
        make_qwen2_moe,
        {
            "num_hidden_layers": 4,
            "decoder_sparse_step": 2,
            "norm_topk_prob": True,
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "qkv_bias": False,
        },
    ),
    "qwen3 moe": (make_qwen3_moe, {}),
    "qwen3 moe, shares as they are, window": (
        make_qwen3_moe,
        {"norm_topk_prob": False, "use_sliding_window": True, "sliding_window": WINDOW},
    ),
    "deepseek v2": (make_deepseek_v2, {}),
    "deepseek v2, biases": (make_deepseek_v2, {"attention_bias": True, "rope_parameters": None}),
    "deepseek v2 lite": (make_deepseek_v2_lite, {}),
    "deepseek v2 lite, tied, all experts": (
        make_deepseek_v2_lite,
        {"tie_word_embeddings": True, "first_k_dense_replace": 0, "n_shared_experts": 1},
    ),
    "deepseek v3": (make_deepseek_v3, {}),
    "deepseek v3, halves, one group, wide values": (
        make_deepseek_v3,
        {
            "rope_interleave": False,
            "rope_parameters": None,
            "norm_topk_prob": False,
            "n_group": 1,
            "topk_group": 1,
            "v_head_dim": 40,
        },
    ),
    "deepseek v3, wide latents, biases": (
        make_deepseek_v3,
        {
            "kv_lora_rank": 256,
            "q_lora_rank": None,
            "attention_bias": True,
            "rope_parameters": None,
            "initializer_range": 0.2,
        },
    ),
    "deepseek v3.2": (make_deepseek_v32, {}),
    "deepseek v3.2, biases, all of it chosen": (
        make_deepseek_v32,
        {"attention_bias": True, "rope_parameters": None, "index_topk": 400},
    ),
    "glm moe dsa": (make_glm_moe_dsa, {}),
    "glm moe dsa, every other layer, wide heads": (
        make_glm_moe_dsa,
        {
            "indexer_types": None,
            "index_topk_freq": 2,
            "index_skip_topk_offset": 1,
            "index_head_dim": 48,
            "index_n_heads": 20,
            "index_topk": 11,
        },
    ),
    "deepseek v4": (make_deepseek_v4, {}),
    "deepseek v4, wide windows of entries, experts by token alone, two streams": (
        make_deepseek_v4,
        {
            "layer_types": [HEAVY, SPARSE, SPARSE, HEAVY],
            "compress_rates": {SPARSE: 3, HEAVY: 17},
            "mlp_layer_types": ["hash_moe"] * 4,
            "hc_mult": 2,
            "index_topk": 100,
            "rope_parameters": None,
        },
    ),
    "llama4": (make_llama4, {}),
    "llama4, two experts, no norms, biases": (
        make_llama4,
        {"num_experts_per_tok": 2, "use_qk_norm": False, "attention_bias": True},
    ),
    "llama4, no chunks, every layer has positions": (
        make_llama4,
        {"attention_chunk_size": 512, "no_rope_layers": [1, 1, 1, 1]},
    ),
    "new falcon, one norm": (make_new_falcon, {"num_ln_in_parallel_attn": 1, "bias": True}),
}


MAIN = {name for name in VARIANTS if "," not in name}
"""One of each family. What a variant changes is arithmetic, which each position of a prompt shows,
whole and in chunks; how else tokens come to a pass is the same for all of a family."""


@pytest.fixture(scope="module", params=list(VARIANTS))
def any_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_variant(request.param, tmp_path_factory)


@pytest.fixture(scope="module", params=with_wide(VARIANTS, MAIN))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_variant(request.param, tmp_path_factory)


def make_variant(name: str, folders: pytest.TempPathFactory) -> Path:
    make, overrides = VARIANTS[name]
    return make(folders.mktemp("model"), **overrides)


def test_every_position_of_a_whole_prompt(any_folder: Path) -> None:
    """All prefixes in one batch, so that the last token of each is a position of the prompt."""
    prompt = make_prompt(21)
    tables = scrambled_tables(range(1, 22))

    logits = answer(
        make_runner(any_folder), [Chunk(prompt[: end + 1], 0, tables[end], 1) for end in range(21)]
    )

    assert_rounded_only(logits, exact_logits(any_folder, prompt))


def test_token_by_token(folder: Path) -> None:
    prompt = make_prompt(75)

    logits = logits_in_chunks(make_runner(folder), prompt, 1)

    assert_rounded_only(logits, exact_logits(folder, prompt))


def test_in_chunks_of_seven(any_folder: Path) -> None:
    prompt = make_prompt(75)

    logits = logits_in_chunks(make_runner(any_folder), prompt, 7)

    assert_rounded_only(logits, exact_logits(any_folder, prompt)[[*range(6, 75, 7), 74]])


def test_requests_of_all_kinds_in_one_batch(folder: Path) -> None:
    """One decodes, one is at a later chunk without logits, one starts, one decodes."""
    runner = make_runner(folder)
    prompts = [make_prompt(length, seed) for seed, length in enumerate((30, 44, 13, 9))]
    starts = (29, 20, 0, 8)
    tables = scrambled_tables([len(prompt) for prompt in prompts])
    for prompt, start, table in zip(prompts, starts, tables, strict=True):
        if start:
            assert len(runner.forward([Chunk(prompt[:start], 0, table, 0)])) == 0

    logits = answer(
        runner,
        [
            Chunk(prompt[start:], start, table, num_outputs=int(prompt is not prompts[1]))
            for prompt, start, table in zip(prompts, starts, tables, strict=True)
        ],
    )

    for row, number in enumerate((0, 2, 3)):
        assert_rounded_only(logits[row : row + 1], exact_logits(folder, prompts[number])[-1:])


def test_blocks_copied_into_another_cache_continue_the_request(folder: Path) -> None:
    prompt = make_prompt(30)
    prefill, decode = make_runner(folder), make_runner(folder)
    source, target = scrambled_tables([29, 30])
    prefill.forward([Chunk(prompt[:29], 0, source, 0)])

    for plane in range(prefill.cache.layout.num_planes):
        for from_block, to_block in zip(source, target, strict=True):
            decode.cache.write(to_block, plane, prefill.cache.view(from_block, plane))

    logits = answer(decode, [Chunk(prompt[29:], 29, target, 1)])
    assert_rounded_only(logits, exact_logits(folder, prompt)[-1:])


def test_transformers_itself_is_no_further_off(folder: Path) -> None:
    """In float32; and so little is far from any mistake."""
    prompt = make_prompt(75)
    exact = exact_logits(folder, prompt)

    assert_rounded_only(transformers_logits(folder, prompt), exact)
    assert exact.bound.max() < 2e-3 * exact.values.std()


MISTAKES: dict[str, Callable[[float], float]] = {
    "rope_theta": lambda base: base * 1.001,
    "rms_norm_eps": lambda eps: eps + 1e-4,
    "layer_norm_epsilon": lambda eps: eps + 1e-4,
}


def with_mistake(config: Any, name: str) -> Any:
    """The same, but for the numbers of such a name at any depth."""
    match config:
        case dict():
            return {
                key: MISTAKES[name](value) if key.endswith(name) else with_mistake(value, name)
                for key, value in config.items()
            }
        case _:
            return config


@pytest.mark.parametrize("family", FAMILIES)
def test_a_small_mistake_is_no_rounding(family: str, tmp_path: Path) -> None:
    folder, prompt = FAMILIES[family](tmp_path), make_prompt(75)
    exact = exact_logits(folder, prompt)[[*range(6, 75, 7), 74]]
    path = folder / "config.json"
    config = json.loads(path.read_text())
    mistakes = {name: with_mistake(config, name) for name in MISTAKES}

    times: dict[str, float] = {}
    for name, wrong in mistakes.items():
        if wrong != config:
            path.write_text(json.dumps(wrong))
            times[name] = times_the_bound(logits_in_chunks(make_runner(folder), prompt, 7), exact)

    assert times
    assert min(times.values()) > 3, times


def test_greedy_decoding_gives_the_same_tokens(folder: Path) -> None:
    runner, prompt, max_tokens = make_runner(folder), make_prompt(17), 24
    (expected,) = transformers_greedy(folder, [prompt], max_tokens)
    (table,) = scrambled_tables([17 + max_tokens])

    tokens = list(prompt)
    num_computed = 0
    while len(tokens) < len(prompt) + len(expected):
        chunk = Chunk(tokens[num_computed:], num_computed, table, 1)
        num_computed = len(tokens)
        tokens.append(int(answer(runner, [chunk]).argmax()))

    assert tokens[len(prompt) :] == expected


@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", 0.1), ("float16", 0.01)])
def test_half_precision_is_near(folder: Path, dtype: str, bound: float, tmp_path: Path) -> None:
    """The root mean square of the error, as a share of the spread of the logits.

    Of the middle one of the tokens: where two experts are as good as equal, another is chosen. So
    is a token, by an index, which is no small error: here it chooses all of them.
    """
    prompt = make_prompt(40)
    config = json.loads((folder / "config.json").read_text())
    if "index_topk" in config:
        folder = shutil.copytree(folder, tmp_path / "choosing all")
        (folder / "config.json").write_text(json.dumps({**config, "index_topk": 400}))

    logits = logits_in_chunks(make_runner(folder, dtype=dtype), prompt, 7)

    expected = transformers_logits(folder, prompt)[[*range(6, 40, 7), 39]]
    assert (logits - expected).square().mean(-1).sqrt().median() < bound * expected.std()


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (make_mistral, {"sliding_window": WINDOW + 1}),
        (make_qwen2, {"sliding_window": WINDOW + 1}),
        (make_gemma2, {"sliding_window": WINDOW + 1}),
        (make_gemma2, {"attn_logit_softcapping": 3.0}),
        (make_gemma2, {"final_logit_softcapping": 9.0}),
        (make_gemma2, {"query_pre_attn_scalar": 6}),
        (make_gemma3, {"sliding_window": WINDOW + 1}),
        (make_gemma3, {"query_pre_attn_scalar": 6}),
        (make_phi3, {"sliding_window": WINDOW + 1}),
        (make_mixtral, {"num_experts_per_tok": 1}),
        (make_qwen2_moe, {"norm_topk_prob": True}),
        (make_llama4, {"attention_chunk_size": WINDOW + 1}),
        (make_llama4, {"use_qk_norm": False}),
        (make_llama4, {"attn_scale": 0.1}),
        (make_llama4, {"floor_scale": 11}),
        (make_deepseek_v2, {"routed_scaling_factor": 1.0}),
        (make_deepseek_v2, {"topk_method": "greedy"}),
        (make_deepseek_v2, {"topk_group": 3}),
        (make_deepseek_v2, {"rope_parameters": {**DEEPSEEK_YARN, "mscale_all_dim": 0.7}}),
        (make_deepseek_v3, {"rope_interleave": False}),
        (make_deepseek_v3, {"norm_topk_prob": False}),
        (make_deepseek_v3, {"topk_group": 3}),
        (make_deepseek_v32, {"index_topk": 6}),
        (make_glm_moe_dsa, {"index_topk": 4}),
        (make_deepseek_v4, {"sliding_window": WINDOW + 1}),
        (make_deepseek_v4, {"index_topk": 4}),
        (make_deepseek_v4, {"hc_sinkhorn_iters": 1}),
        (make_deepseek_v4, {"swiglu_limit": 0.7}),
        (make_deepseek_v4, {"routed_scaling_factor": 1.0}),
    ],
)
def test_what_is_particular_about_a_family_matters_to_these_tests(
    make: Callable[..., Path], change: dict[str, Any], tmp_path: Path
) -> None:
    folder, prompt = make(tmp_path), make_prompt(40)
    before = logits_in_chunks(make_runner(folder), prompt, 7)

    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))

    assert (logits_in_chunks(make_runner(folder), prompt, 7) - before).abs().max() > 0.05


def test_a_cache_of_another_model_is_refused(tmp_path: Path) -> None:
    one = load_model(make_llama(tmp_path / "one"))
    other = load_model(make_llama(tmp_path / "other", seed=1))

    with pytest.raises(ValueError, match="another model"):
        ModelRunner(one, KvCache(other.info.layout(BLOCK_SIZE), 4))
    with pytest.raises(ValueError, match="for a model in bfloat16, but this model is in float32"):
        ModelRunner(one, KvCache(one.info.layout(BLOCK_SIZE, "int8"), 4, dtype="bfloat16"))
