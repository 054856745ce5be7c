"""Drafts fill blocks that are then in 4 bits, and go on in the next: what of them is wrong is
written over, and leaves no trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.guessing_drafter import guessing
from tests.tiny_checkpoints import make_llama

from baton.core.kv_pool import Holder, HolderKind
from baton.core.sampling import SamplingParams, TokenLogprob
from baton.engine.assemble import assemble_engine
from baton.engine.config import CacheConfig, EngineConfig, SpeculationConfig
from baton.engine.engine import Engine
from baton.engine.memory.kv_cache import KvCache
from baton.engine.request.request import Request
from baton.engine.step_hooks import StepHooks

BLOCK_SIZE, NUM_TOKENS = 4, 41
CONFIG = EngineConfig(cache=CacheConfig(block_size=BLOCK_SIZE, num_blocks=64, kv_dtype="int4"))
DRAFTING = replace(CONFIG, speculation=SpeculationConfig(method="ngram", max_tokens=7))
PROMPTS = [[(7 * place) % 60 + 3 for place in range(length)] for length in (5, 16, 23)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, num_logprobs=2)
WARM = replace(GREEDY, temperature=0.9, top_p=0.9, frequency_penalty=0.3, seed=4)


def told(
    engine: Engine, sampling: SamplingParams
) -> tuple[list[list[int]], list[TokenLogprob], int]:
    """The answers, the logprobs of all tokens in their order, and how many drafts began in one
    block and ended in another."""
    requests = [Request(f"{i}", prompt, sampling=sampling) for i, prompt in enumerate(PROMPTS)]
    logprobs: dict[str, list[TokenLogprob]] = {each.request_id: [] for each in requests}
    over_ends = set[tuple[str, int]]()

    def on_layer(layer: int, chunks: object) -> None:
        for chunk in chunks:  # type: ignore[attr-defined]
            first, num_drafted = len(chunk.request.tokens), len(chunk.drafted)
            if num_drafted and first // BLOCK_SIZE < (first + num_drafted - 1) // BLOCK_SIZE:
                over_ends.add((chunk.request.request_id, first))

    for request in requests:
        engine.add(request)
    while engine.has_work:
        for output in engine.step(StepHooks(on_layer=on_layer)).outputs:
            logprobs[output.request.request_id] += output.logprobs
    every = [each for of_request in logprobs.values() for each in of_request]
    return [each.output for each in requests], every, len(over_ends)


def kept(engine: Engine, answers: list[list[int]]) -> torch.Tensor:
    """The bytes that whoever has the same tokens is given for them."""
    cache = engine.runner.cache
    assert isinstance(cache, KvCache)
    found, lease = [], Holder(HolderKind.LEASE, "kept")
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        known = [*prompt, *answer][:-1]  # the last token is not computed
        num_tokens = engine.pool.hold_cached(lease, [*known, 0], b"")
        assert num_tokens == len(known) // BLOCK_SIZE * BLOCK_SIZE
        blocks = list(engine.pool.table(lease))
        found += [plane[blocks].view(torch.uint8).flatten() for plane in cache.planes]
        engine.pool.release(lease)
    return torch.cat(found)


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "seeded"])
def test_drafts_over_the_ends_of_blocks_change_no_bit(
    sampling: SamplingParams, tmp_path: Path
) -> None:
    folder = make_llama(tmp_path)
    plain = assemble_engine(folder, CONFIG, dtype="bfloat16", device="cpu")
    answers, logprobs, _ = told(plain, sampling)
    engine = assemble_engine(folder, DRAFTING, dtype="bfloat16", device="cpu")
    known = {f"{number}": answer for number, answer in enumerate(answers)}
    engine.speculation = guessing(known, 7, errs_every=2)

    found = told(engine, sampling)

    assert found[:2] == (answers, logprobs)
    assert found[2] > 5 and engine.stats.num_drafted > engine.stats.num_accepted > 0
    assert torch.equal(kept(engine, answers), kept(plain, answers))
