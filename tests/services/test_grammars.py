"""A grammar is followed to the same tokens wherever, and however often, its request is computed."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.scripted import (
    eos_token,
    json_vocab_size,
    text_of,
    tokenizer_json,
    tokens_of,
)
from tests.in_process_fleet import Answer, Fleet, running_fleet
from tests.services.model_engines import engines
from tests.tiny_checkpoints import make_llama

from baton.core.sampling import FinishReason, Grammar, GrammarKind, SamplingParams

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 9},
        "kind": {"enum": ["fox", "dog"]},
        "legs": {"type": "integer", "minimum": 0, "maximum": 999},
    },
    "required": ["name", "kind", "legs"],
    "additionalProperties": False,
}
REGEX = "[a-z]{5,20}(-[0-9]{2}){2}"
GRAMMARS = (
    Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)),
    Grammar(GrammarKind.REGEX, REGEX),
    Grammar(GrammarKind.LARK, 'start: ("quick" | "lazy") " " ANIMAL+\nANIMAL: /fox|dog/ ";"'),
)
PROMPTS = [f"Say number {index}: " + "the lazy dog " * (index % 4) for index in range(12)]


def sampling(index: int) -> SamplingParams:
    """Greedy and drawn ones, all grammars in turn."""
    return SamplingParams(
        temperature=float(index % 2),
        seed=index,
        max_tokens=64,
        grammar=GRAMMARS[index % len(GRAMMARS)],
        num_logprobs=1,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texted")
    make_llama(folder, vocab_size=json_vocab_size(), eos_token_id=eos_token())
    (folder / "tokenizer.json").write_text(tokenizer_json())
    return folder


async def ask(fleet: Fleet, index: int, **options: Any) -> Answer:
    return await fleet.ask(tokens_of(PROMPTS[index]), sampling(index), **options)


async def ask_one_by_one(folder: Path) -> list[list[int]]:
    async with running_fleet(prefill=0, make_engine=engines(folder)) as fleet:
        return [(await ask(fleet, index)).tokens for index in range(len(PROMPTS))]


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[int]]:
    """By one replica, one after the other."""
    return asyncio.run(ask_one_by_one(folder))


def test_what_comes_out_is_a_sentence_of_the_grammar(expected: list[list[int]]) -> None:
    num_ended = 0
    for index, tokens in enumerate(expected):
        has_ended = tokens[-1] == eos_token()
        num_ended += has_ended
        text = text_of(tokens[:-1] if has_ended else tokens)
        match index % len(GRAMMARS):
            case 0 if has_ended:
                assert json.loads(text).keys() == SCHEMA["properties"].keys()  # type: ignore[attr-defined]
            case 1 if has_ended:
                assert re.fullmatch(REGEX, text)
            case 2:
                assert re.fullmatch("(quick|lazy) (fox;|dog;)*(f|fo|fox|d|do|dog)?", text)
    assert num_ended > len(PROMPTS) / 2


async def test_all_at_once_handed_off(folder: Path, expected: list[list[int]]) -> None:
    async with running_fleet(make_engine=engines(folder, prefill_chunk=7)) as fleet:
        answers = await asyncio.gather(*(ask(fleet, index) for index in range(len(PROMPTS))))

        assert [answer.tokens for answer in answers] == expected
        assert all(answer.receipt.prefill_replica for answer in answers)
        await fleet.assert_nothing_is_held()


@pytest.mark.parametrize("num_prefill", [0, 1], ids=["aggregated", "1P+1D"])
async def test_all_at_once_in_a_pool_so_small_that_preemption_happens(
    folder: Path, expected: list[list[int]], num_prefill: int
) -> None:
    make_engine = engines(folder, prefill_chunk=7, decode_blocks=40)
    async with running_fleet(prefill=num_prefill, make_engine=make_engine) as fleet:
        decode = next(id_ for id_ in fleet.engines if id_.startswith("decode"))
        askings = [ask(fleet, index) for index in range(len(PROMPTS))]
        # They have 13 to 22 tokens, and 50, 64, 39 and 64 to come: 75 blocks. There are 40.
        answers = await fleet.ask_all(askings, at=decode, first=[0, 2, 3, 5])

        assert [answer.tokens for answer in answers] == expected
        assert fleet.engines[decode].stats.num_preempted > 0
        await fleet.assert_nothing_is_held()


@pytest.mark.parametrize("num_prefill", [0, 1], ids=["aggregated", "1P+2D"])
@pytest.mark.parametrize("index", [0, 1, 2])
async def test_continued_on_another_replica_after_a_crash(
    folder: Path, expected: list[list[int]], num_prefill: int, index: int
) -> None:
    async with running_fleet(prefill=num_prefill, decode=2, make_engine=engines(folder)) as fleet:
        num_before = len(fleet.replicas)

        async def kill(num_tokens: int) -> None:
            if num_tokens >= 6 and len(fleet.replicas) == num_before:
                [link] = [one for one in fleet.dispatcher.fleet.connected if one.num_open]
                await fleet.crash(link.info.replica_id)
                go_on()

        with fleet.halting_at(6) as go_on:
            answer = await ask(fleet, index, on_token=kill)

        assert answer.tokens == expected[index]
        assert answer.receipt.attempts == 2
        await fleet.assert_nothing_is_held()


async def test_beside_requests_without_a_grammar(folder: Path, expected: list[list[int]]) -> None:
    prompt = tokens_of(PROMPTS[0])
    async with running_fleet(prefill=1, make_engine=engines(folder)) as fleet:
        alone = await fleet.ask(prompt, replace(sampling(0), grammar=None))

        free, bound = await asyncio.gather(
            fleet.ask(prompt, replace(sampling(0), grammar=None)), ask(fleet, 0)
        )

        assert free.tokens == alone.tokens != bound.tokens
        assert bound.tokens == expected[0]


async def test_the_end_of_the_sentence_ends_the_output_whatever_else_was_asked_for(
    folder: Path,
) -> None:
    grammar = Grammar(GrammarKind.REGEX, "ab|cd")
    asked = replace(sampling(0), grammar=grammar, ignore_eos=True, min_tokens=20)
    async with running_fleet(prefill=1, make_engine=engines(folder)) as fleet:
        answer = await fleet.ask(tokens_of(PROMPTS[0]), asked)

        assert text_of(answer.tokens[:-1]) in ("ab", "cd")
        assert answer.tokens[-1] == eos_token()
        assert answer.finish_reason is FinishReason.STOP


async def test_the_first_token_drawn_by_a_prefill_replica_obeys_what_was_asked_for(
    folder: Path,
) -> None:
    """Bias, allowed tokens, bad words and the grammar's mask."""
    prompt = tokens_of(PROMPTS[0])
    one = SamplingParams(temperature=0.0, max_tokens=1)
    async with running_fleet(prefill=1, make_engine=engines(folder)) as fleet:
        [free] = (await fleet.ask(prompt, one)).tokens
        asked = [
            replace(one, logit_bias=((7, 1000.0),)),
            replace(one, allowed_token_ids=(9,)),
            replace(one, bad_words=((free,),)),
            replace(one, grammar=Grammar(GrammarKind.REGEX, "q.*")),
            replace(one, typical_p=1e-6, temperature=1.0),
        ]

        answers = [await fleet.ask(prompt, params) for params in asked]

        assert all(answer.receipt.prefill_replica for answer in answers)
        [biased], [allowed], [other], [quick], [typical] = (a.tokens for a in answers)
        assert (biased, allowed) == (7, 9)
        assert other != free
        assert text_of([quick]).startswith("q")
    async with running_fleet(prefill=0, make_engine=engines(folder)) as fleet:
        assert (await fleet.ask(prompt, asked[-1])).tokens == [typical]
