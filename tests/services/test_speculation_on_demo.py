"""Every method that has something to draft with for the demo model, with real kernels and prompts
that are handed over: tokens and logprobs are, to the bit, those of an engine that drafts nothing.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import cache

import pytest
from tests.in_process_fleet import running_fleet
from tokenizers import Tokenizer

from baton.core.replicas import Role
from baton.core.sampling import Grammar, GrammarKind, SamplingParams, TokenLogprob
from baton.engine.assemble import assemble_engine
from baton.engine.config import CacheConfig, EngineConfig, SpeculationConfig
from baton.engine.engine import Engine
from baton.engine.request.request import Request
from baton.platform.models.model_folder import built_in_folder, find_model

METHODS = ("suffix", "ngram", "lookahead", "draft", "eagle", "p-eagle", "medusa")
WITH_MODEL = ("draft", "eagle", "p-eagle", "medusa")
WITH_FEATURES = ("eagle", "p-eagle")
CACHE = CacheConfig(block_size=16, num_blocks=128)
WORDS = {"type": "array", "items": {"enum": ["json", "csv", "toml"]}, "minItems": 6, "maxItems": 8}
SCHEMA = {"type": "object", "properties": {"modules": WORDS}, "required": ["modules"]}
GRAMMAR = Grammar(GrammarKind.JSON_SCHEMA, json.dumps({**SCHEMA, "additionalProperties": False}))
PROMPT = (
    'def modules():\n    return {"modules": ["json", "csv", "json", "csv", "json", "csv"]}\n\n\n'
)
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, num_logprobs=3)
NUCLEUS = replace(
    GREEDY,
    temperature=0.8,
    top_p=0.9,
    repetition_penalty=1.1,
    presence_penalty=0.2,
    frequency_penalty=0.1,
    seed=5,
)
SAMPLINGS = (
    GREEDY,
    NUCLEUS,
    replace(GREEDY, ignore_eos=False, grammar=GRAMMAR),
    replace(NUCLEUS, ignore_eos=False, grammar=GRAMMAR, seed=6),
    replace(NUCLEUS, ignore_eos=False, grammar=GRAMMAR, seed=7),
)


@cache
def prompt() -> tuple[int, ...]:
    tokenizer = Tokenizer.from_file(str(find_model("demo") / "tokenizer.json"))
    return tuple(tokenizer.encode(2 * PROMPT).ids)


def engine_of(method: str, role: Role) -> Engine:
    speculation = SpeculationConfig(
        method=method,  # type: ignore[arg-type]
        model=str(built_in_folder(method)) if method in WITH_MODEL else "",
        max_tokens=4,
        adaptive=False,
    )
    config = EngineConfig(cache=CACHE)
    if method in WITH_FEATURES:
        config = replace(config, keeps_features_for=replace(speculation, features="on"))
    if role is Role.DECODE:
        config = replace(config, speculation=speculation)
    return assemble_engine(find_model("demo"), config, device="cpu")


Said = tuple[list[int], list[TokenLogprob]]


@cache
def said_plainly() -> tuple[Said, ...]:
    """Each alone."""
    engine = assemble_engine(find_model("demo"), EngineConfig(cache=CACHE), device="cpu")
    said: list[Said] = []
    for number, sampling in enumerate(SAMPLINGS):
        assert engine.grammars is not None
        grammar = sampling.grammar
        matcher = None if grammar is None else engine.grammars.compile(grammar)
        request = Request(str(number), prompt(), sampling=sampling, matcher=matcher)
        engine.add(request)
        logprobs: list[TokenLogprob] = []
        while engine.has_work:
            for output in engine.step().outputs:
                logprobs += output.logprobs
        said.append((request.output, logprobs))
    return tuple(said)


@pytest.mark.parametrize("method", METHODS)
async def test_what_the_demo_says_is_the_same_to_the_bit_whoever_drafts(method: str) -> None:
    async with running_fleet(make_engine=lambda role: engine_of(method, role)) as fleet:
        answers = await asyncio.gather(*(fleet.ask(prompt(), each) for each in SAMPLINGS))

        for answer, said in zip(answers, said_plainly(), strict=True):
            assert (answer.tokens, answer.logprobs) == said
        accepted = [answer.receipt.accepted_tokens for answer in answers]
        assert sum(accepted[:2]) > 0, "outside of grammars nothing was right"
        assert sum(accepted[2:]) > 0, "within grammars nothing was right"
        assert any(answer.receipt.prefill_replica for answer in answers)
        await fleet.assert_nothing_is_held()
