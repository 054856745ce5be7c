"""Our logits against those of transformers, at every position, however a prompt is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny_checkpoints import (
    LLAMA3_ROPE,
    VOCAB_SIZE,
    make_llama,
    make_qwen3,
    transformers_greedy,
    transformers_logits,
)

from baton.engine.batch import Chunk
from baton.engine.checkpoint.load import load_model
from baton.engine.kv_cache import KvCache
from baton.engine.runner import ModelRunner

BLOCK_SIZE, NUM_BLOCKS = 4, 128

VARIANTS: dict[str, tuple[Callable[..., Path], dict[str, Any]]] = {
    "grouped-query": (make_llama, {}),
    "multi-head": (make_llama, {"num_key_value_heads": 4}),
    "multi-query": (make_llama, {"num_key_value_heads": 1}),
    "tied": (make_llama, {"tie_word_embeddings": True}),
    "wide heads": (make_llama, {"head_dim": 16}),
    "llama3 rope": (make_llama, {"rope_parameters": LLAMA3_ROPE}),
    "linear rope": (
        make_llama,
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}},
    ),
    "sharded": (make_llama, {"max_shard_size": "10KB"}),
    "qwen3": (make_qwen3, {}),
    "qwen3, wide, tied": (make_qwen3, {"head_dim": 16, "tie_word_embeddings": True}),
}


@pytest.fixture(scope="module", params=list(VARIANTS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    make, overrides = VARIANTS[request.param]
    return make(tmp_path_factory.mktemp("model"), **overrides)


def make_runner(folder: Path, **options: Any) -> ModelRunner:
    loaded = load_model(folder, **options)
    return ModelRunner(loaded, KvCache(loaded.info.layout(BLOCK_SIZE), NUM_BLOCKS))


def make_prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(2, VOCAB_SIZE, (length,), generator=generator).tolist()
    return tokens


def scrambled_tables(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    order = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(seed))
    blocks = iter(order.tolist())
    return [[next(blocks) for _ in range(-(-length // BLOCK_SIZE))] for length in lengths]


def logits_in_chunks(runner: ModelRunner, prompt: list[int], chunk_len: int) -> torch.Tensor:
    """Logits of the last token of each chunk."""
    (table,) = scrambled_tables([len(prompt)])
    return torch.cat(
        [
            runner.forward([Chunk(prompt[start : start + chunk_len], start, table, True)])
            for start in range(0, len(prompt), chunk_len)
        ]
    )


def assert_near(logits: torch.Tensor, expected: torch.Tensor) -> None:
    assert logits.dtype is torch.float32
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


def test_every_position_of_a_whole_prompt(folder: Path) -> None:
    """All prefixes in one batch, so that the last token of each is a position of the prompt."""
    prompt = make_prompt(21)
    tables = scrambled_tables(range(1, 22))

    logits = make_runner(folder).forward(
        [Chunk(prompt[: end + 1], 0, tables[end], True) for end in range(21)]
    )

    assert_near(logits, transformers_logits(folder, prompt))


def test_token_by_token(folder: Path) -> None:
    prompt = make_prompt(75)

    logits = logits_in_chunks(make_runner(folder), prompt, 1)

    assert_near(logits, transformers_logits(folder, prompt))


def test_in_chunks_of_seven(folder: Path) -> None:
    prompt = make_prompt(75)

    logits = logits_in_chunks(make_runner(folder), prompt, 7)

    assert_near(logits, transformers_logits(folder, prompt)[[*range(6, 75, 7), 74]])


def test_requests_of_all_kinds_in_one_batch(folder: Path) -> None:
    """One decodes, one is at a later chunk without logits, one starts, one decodes."""
    runner = make_runner(folder)
    prompts = [make_prompt(length, seed) for seed, length in enumerate((30, 44, 13, 9))]
    starts = (29, 20, 0, 8)
    tables = scrambled_tables([len(prompt) for prompt in prompts])
    for prompt, start, table in zip(prompts, starts, tables, strict=True):
        if start:
            assert runner.forward([Chunk(prompt[:start], 0, table, False)]).shape == (0, VOCAB_SIZE)

    logits = runner.forward(
        [
            Chunk(prompt[start:], start, table, wants_logits=prompt is not prompts[1])
            for prompt, start, table in zip(prompts, starts, tables, strict=True)
        ]
    )

    expected = [transformers_logits(folder, prompts[i])[-1] for i in (0, 2, 3)]
    assert_near(logits, torch.stack(expected))


def test_blocks_copied_into_another_cache_continue_the_request(folder: Path) -> None:
    prompt = make_prompt(30)
    prefill, decode = make_runner(folder), make_runner(folder)
    source, target = scrambled_tables([29, 30])
    prefill.forward([Chunk(prompt[:29], 0, source, False)])

    for layer in range(prefill.info.num_layers):
        for from_block, to_block in zip(source, target, strict=True):
            decode.cache.write(to_block, layer, prefill.cache.view(from_block, layer))

    logits = decode.forward([Chunk(prompt[29:], 29, target, True)])
    assert_near(logits, transformers_logits(folder, prompt)[-1:])


def test_greedy_decoding_gives_the_same_tokens(folder: Path) -> None:
    runner, prompt, max_tokens = make_runner(folder), make_prompt(17), 24
    (expected,) = transformers_greedy(folder, [prompt], max_tokens)
    (table,) = scrambled_tables([17 + max_tokens])

    tokens = list(prompt)
    num_computed = 0
    while len(tokens) < len(prompt) + len(expected):
        chunk = Chunk(tokens[num_computed:], num_computed, table, True)
        num_computed = len(tokens)
        tokens.append(int(runner.forward([chunk]).argmax()))

    assert tokens[len(prompt) :] == expected


@pytest.mark.parametrize(("dtype", "atol"), [("bfloat16", 0.6), ("float16", 0.08)])
def test_half_precision_is_near(folder: Path, dtype: str, atol: float) -> None:
    prompt = make_prompt(40)

    logits = logits_in_chunks(make_runner(folder, dtype=dtype), prompt, 7)

    expected = transformers_logits(folder, prompt)[[*range(6, 40, 7), 39]]
    assert expected.std() > 1
    torch.testing.assert_close(logits, expected, rtol=0, atol=atol)


def test_a_cache_of_another_model_is_refused(tmp_path: Path) -> None:
    one = load_model(make_llama(tmp_path / "one"))
    other = load_model(make_llama(tmp_path / "other", seed=1))

    with pytest.raises(ValueError, match="another model"):
        ModelRunner(one, KvCache(other.info.layout(BLOCK_SIZE), 4))
