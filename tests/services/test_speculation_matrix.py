"""Speculation is exact in every combination: each method, in both kinds of fleets, whatever is
asked and whatever happens meanwhile, comes to the tokens and logprobs of plain decoding. In each,
prompts begin alike, and some are asked again, so that they are found in the prefix cache."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import pytest
from tests import tiny_tokenizers
from tests.covering_rows import covering
from tests.echo_head import EchoHead
from tests.echo_medusa import EchoMedusa
from tests.guessing_drafter import ErringDrafter
from tests.in_process_fleet import Answer, Fleet, running_fleet
from tests.services.migrating import busy, slow_down

from baton.core.ids import ReplicaId
from baton.core.replicas import Role
from baton.core.sampling import Grammar, GrammarKind, SamplingParams, TokenLogprob
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.engine import Engine
from baton.engine.grammar.grammar_check import GrammarChecker
from baton.engine.grammar.structured_output import LlGuidanceCompiler
from baton.engine.memory.kv_cache import KvCache
from baton.engine.passes.echo import EchoRunner, echo_info
from baton.engine.request.request import Request
from baton.engine.speculation.draft_budget import FixedBudget
from baton.engine.speculation.draft_model import ModelDrafter
from baton.engine.speculation.drafter import Drafter, Refiner
from baton.engine.speculation.head_drafter import HeadDrafter
from baton.engine.speculation.hidden_reader import HiddenReader
from baton.engine.speculation.lookahead import LookaheadDrafter
from baton.engine.speculation.medusa_drafter import MedusaDrafter
from baton.engine.speculation.ngram import NgramDrafter
from baton.engine.speculation.speculation import Speculation
from baton.engine.speculation.suffix import SuffixDrafter

VOCAB, BLOCK_SIZE, NUM_BLOCKS, TIGHT = 512, 4, 1024, 32
MAX_DRAFTED, NUM_TOKENS = 4, 28
WORDS = {"type": "array", "items": {"enum": ["fox", "dog", "bird"]}, "minItems": 4, "maxItems": 6}
SCHEMA = {"type": "object", "properties": {"all": WORDS}, "required": ["all"]}
GRAMMAR = Grammar(GrammarKind.JSON_SCHEMA, json.dumps({**SCHEMA, "additionalProperties": False}))
PLAIN = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
SEEDED = replace(PLAIN, temperature=40.0, top_p=0.95, repetition_penalty=2.0, seed=5)
ASKED = {
    "plain": {"ignore_eos": True},
    "json": {"grammar": GRAMMAR},
    "logprobs": {"ignore_eos": True, "num_logprobs": 2},
}
METHODS = ("suffix", "ngram", "lookahead", "draft", "mtp", "eagle", "p-eagle", "medusa")
STRIKES = ("drain", "kill")
STRIKES_AT = 5
"""Tokens."""


@cache
def compiler() -> LlGuidanceCompiler:
    tokenizer = tiny_tokenizers.byte_level()
    return LlGuidanceCompiler(
        GrammarChecker(lambda: tokenizer, [0]), vocab_size=VOCAB, eos_token_ids=[0]
    )


def echo_runner(num_blocks: int) -> EchoRunner:
    info = echo_info(vocab_size=VOCAB, max_model_len=2048, eos_token_ids=(0,))
    return EchoRunner(info, num_blocks=num_blocks, block_size=BLOCK_SIZE)


def plain_engine(num_blocks: int = NUM_BLOCKS) -> Engine:
    config = EngineConfig(
        cache=CacheConfig(block_size=BLOCK_SIZE, num_blocks=num_blocks),
        scheduler=SchedulerConfig(max_running=64),
    )
    return Engine(echo_runner(num_blocks), config, grammars=compiler())


def drafting(method: str, runner: EchoRunner) -> Speculation:
    """By the method itself, whose guesses are good where it is asked for an echo, and err else."""
    eos = (0,)
    drafter: Drafter
    reader: HiddenReader | None = None
    refiner: Refiner | None = None
    match method:
        case "suffix":
            drafter = SuffixDrafter()
        case "ngram":
            drafter = NgramDrafter()
        case "lookahead":
            drafter = refiner = LookaheadDrafter()
        case "draft":
            small = echo_runner(NUM_BLOCKS)
            drafter = ModelDrafter(small, max_batch_tokens=64, eos_token_ids=eos)
        case "medusa":
            drafter = reader = MedusaDrafter(EchoMedusa(runner, MAX_DRAFTED), eos_token_ids=eos)
        case _:
            head = EchoHead(runner, is_parallel=method == "p-eagle")
            own = KvCache(runner.cache.layout, NUM_BLOCKS)
            drafter = reader = HeadDrafter(method, head, own, eos_token_ids=eos)
    erring = ErringDrafter(drafter, 7)
    return Speculation(erring, FixedBudget(MAX_DRAFTED), reader=reader, refiner=refiner)


Said = tuple[list[int], list[TokenLogprob]]


@cache
def plainly_answered(prompt: tuple[int, ...], sampling: SamplingParams) -> Said:
    """One request alone on an engine that drafts nothing."""
    matcher = None if sampling.grammar is None else compiler().compile(sampling.grammar)
    engine = plain_engine()
    request = Request("r", prompt, sampling=sampling, matcher=matcher)
    engine.add(request)
    logprobs: list[TokenLogprob] = []
    while engine.has_work:
        for output in engine.step().outputs:
            logprobs += output.logprobs
    return request.output, logprobs


@dataclass
class Trouble:
    """What befalls the first decode replica that is busy, when a request has some tokens."""

    name: str
    struck: list[ReplicaId] = field(default_factory=list)
    go_on: Callable[[], None] = lambda: None

    async def strike(self, fleet: Fleet, num_tokens: int) -> None:
        if num_tokens < STRIKES_AT or self.struck or self.name not in STRIKES:
            return
        self.struck.append(busy(fleet)[0])
        if self.name == "kill":
            await fleet.crash(self.struck[0])
        else:
            await fleet.dispatcher.drain(self.struck[0], is_forced=False)
        self.go_on()


async def ask_all(
    fleet: Fleet, prompts: Sequence[tuple[int, ...]], sampling: SamplingParams, trouble: Trouble
) -> list[Answer]:
    async def ask(index: int) -> Answer:
        return await fleet.ask(
            prompts[index],
            replace(sampling, seed=index),
            on_token=lambda num_tokens: trouble.strike(fleet, num_tokens),
        )

    askings = [ask(index) for index in range(len(prompts))]
    if trouble.name in STRIKES:
        with fleet.halting_at(STRIKES_AT) as trouble.go_on:
            return await asyncio.gather(*askings)
    if trouble.name != "preemption":
        return await asyncio.gather(*askings)
    [decode] = [it for it, replica in fleet.replicas.items() if replica.info.role is Role.DECODE]
    return await fleet.ask_all(askings, at=decode, first=range(4))  # they lack blocks together


def finds_something(method: str, drawn: str, asked: str) -> bool:
    """An echo hardly ever says a token again, and is hardly ever JSON, which models know."""
    if method == "ngram":
        return asked == "json"
    return (drawn, asked) != ("greedy", "json")


AXES: dict[str, Sequence[object]] = {
    "method": METHODS,
    "prefill": (1, 0),
    "drawn": ("greedy", "seeded"),
    "asked": tuple(ASKED),
    "batch": (1, 5, 32),
    "trouble": ("none", "preemption", "drain", "kill"),
}


def rows() -> list[tuple[object, ...]]:
    """A quarter of all, in which any three values meet: their places add up to 0, 4, 8 ..."""
    places = itertools.product(*(range(len(values)) for values in AXES.values()))
    return [
        tuple(values[at] for values, at in zip(AXES.values(), row, strict=True))
        for row in places
        if sum(row) % 4 == 0
    ]


def marked_rows() -> list[object]:
    """In every run any two meet, of which none takes long."""
    quick = [row for row in rows() if row[4] != 32 and row[5] != "none"]
    chosen = set(itertools.compress(quick, covering([[*map(str, row)] for row in quick])))
    return [pytest.param(*row, marks=[] if row in chosen else pytest.mark.wide) for row in rows()]


def test_any_three_values_meet() -> None:
    for axes in itertools.combinations(range(len(AXES)), 3):
        met = {tuple(row[axis] for axis in axes) for row in rows()}
        assert len(met) == math.prod(len([*AXES.values()][axis]) for axis in axes)


@pytest.mark.parametrize(tuple(AXES), marked_rows())
async def test_every_method_comes_to_what_plain_decoding_does(  # the axes
    method: str, prefill: int, drawn: str, asked: str, batch: int, trouble: str
) -> None:
    engines: list[Engine] = []

    def make_engine(role: Role) -> Engine:
        is_tight = trouble == "preemption" and role is Role.DECODE
        engine = plain_engine(TIGHT if is_tight else NUM_BLOCKS)
        if role is Role.DECODE:
            assert isinstance(engine.runner, EchoRunner)
            engine.speculation = drafting(method, engine.runner)
            engines.append(engine)
            if trouble in STRIKES:
                slow_down(engine)
        return engine

    sampling = replace(PLAIN if drawn == "greedy" else SEEDED, **ASKED[asked])  # type: ignore[arg-type]
    num = max(batch, 4) if trouble == "preemption" else batch
    shared = tuple(range(1, 18))
    prompts = [shared + tuple((31 * i + 7 * j) % 250 + 1 for i in range(9)) for j in range(num)]
    happening = Trouble(trouble)
    num_decode = 2 if trouble in STRIKES else 1
    async with running_fleet(prefill=prefill, decode=num_decode, make_engine=make_engine) as fleet:
        answers = await ask_all(fleet, prompts, sampling, happening)
        again = await ask_all(fleet, prompts[:4], sampling, Trouble("none"))

        expected = [
            plainly_answered(prompt, replace(sampling, seed=index))
            for index, prompt in enumerate(prompts)
        ]
        assert [(each.tokens, each.logprobs) for each in answers] == expected
        assert [(each.tokens, each.logprobs) for each in again] == expected[:4]
        assert all(each.receipt.cached_tokens >= len(shared) - BLOCK_SIZE for each in again)
        if finds_something(method, drawn, asked):
            assert sum(engine.stats.num_drafted for engine in engines) > 0
        if happening.struck:
            assert max(each.receipt.attempts for each in answers) > 1
        if trouble == "preemption":
            assert engines[0].stats.num_preempted > 0
        await fleet.assert_nothing_is_held()
