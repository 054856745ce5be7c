"""Drafts behind those who decode: no token, name, block or word to others is different for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests import tiny_tokenizers
from tests.echo_engines import BLOCK_SIZE, VOCAB, make_engine, make_request, run
from tests.engine.speculation.handing_over import handed_over
from tests.grammar_compilers import LETTERS
from tests.guessing_drafter import guessing

from baton.core.errors import Unavailable
from baton.core.sampling import FinishReason, SamplingParams
from baton.engine.config import SchedulerConfig
from baton.engine.engine import Engine
from baton.engine.grammar.grammar_check import GrammarChecker
from baton.engine.grammar.structured_output import LlGuidanceCompiler
from baton.engine.passes.echo import echo_output
from baton.engine.request.request import Request
from baton.engine.request.step_report import StepReport
from baton.engine.schedule.drafted_chunks import ScheduledChunk
from baton.engine.schedule.verification import verified
from baton.engine.step_hooks import StepHooks

GREEDY = SamplingParams(temperature=0.0, max_tokens=20)
DRAWN = SamplingParams(
    temperature=40.0, top_p=0.95, repetition_penalty=3.0, frequency_penalty=1.5, seed=11
)
"""Noise is as large as what an echo says, and what was drawn is drawn again less often."""


def drafting(
    answers: dict[str, list[int]], *, max_tokens: int = 5, errs_every: int = 4, **engine: object
) -> Engine:
    made = make_engine(**engine)  # type: ignore[arg-type]
    made.speculation = guessing(answers, max_tokens, errs_every=errs_every)
    return made


def outputs_of(engine: Engine, requests: Sequence[Request]) -> list[StepReport]:
    for request in requests:
        engine.add(request)
    reports = run(engine)
    census = engine.pool.census()
    assert not census.tables
    assert len(census.cached) + len(census.free) == census.num_blocks
    return reports


def test_a_draft_that_errs_is_kept_up_to_its_first_wrong_token() -> None:
    assert verified([7, 8, 9], [7, 8, 1, 2], [True] * 4) == (7, 8, 1)
    assert verified([7, 8], [7, 8, 1], [True] * 3) == (7, 8, 1)
    assert verified([7, 8], [3, 8, 1], [True] * 3) == (3,)
    assert verified([], [3], [True]) == (3,)


def test_behind_logits_that_are_not_finite_nothing_was_drawn() -> None:
    assert verified([7, 8], [7, 8, 1], [True, False, True]) == (7,)
    assert verified([7, 8], [3, 8, 1], [True, False, True]) == (3,)
    assert verified([7], [7, 1], [False, True]) == ()


@pytest.mark.parametrize("num_requests", [1, 8])
@pytest.mark.parametrize("sampling", [SamplingParams(temperature=0.0), DRAWN])
@pytest.mark.parametrize("num_blocks", [256, 40])
def test_tokens_and_logprobs_are_those_of_plain_decoding(
    num_requests: int, sampling: SamplingParams, num_blocks: int
) -> None:
    def requests() -> list[Request]:
        told = replace(sampling, max_tokens=30, num_logprobs=2)
        return [Request(str(i), range(5 + 3 * i), sampling=told) for i in range(num_requests)]

    plain, drafted = requests(), requests()
    expected = outputs_of(make_engine(num_blocks=num_blocks), plain)
    engine = drafting({r.request_id: r.output for r in plain}, num_blocks=num_blocks)

    reports = outputs_of(engine, drafted)

    def said(reports: Sequence[StepReport], name: str) -> list[object]:
        outputs = [o for r in reports for o in r.outputs if o.request.request_id == name]
        return [pair for o in outputs for pair in zip(o.tokens, o.logprobs, strict=True)]

    for request in plain:
        assert said(reports, request.request_id) == said(expected, request.request_id)
    assert engine.stats.num_drafted > engine.stats.num_accepted > 0
    assert num_blocks == 256 or num_requests == 1 or engine.stats.num_preempted


def test_an_end_among_drafts_is_the_end_and_what_was_computed_is_found_again() -> None:
    expected = echo_output(range(11), 20, VOCAB)
    for limit in (
        {"stop_token_ids": (expected[13],)},
        {"max_tokens": expected.index(expected[13]) + 1},
    ):
        engine = drafting({"r": expected, "again": []}, errs_every=100)
        sampling = replace(GREEDY, **limit)
        request = Request("r", range(11), sampling=sampling)

        *_, last = outputs_of(engine, [request])

        assert request.output == expected[: expected.index(expected[13]) + 1]
        assert last.outputs[0].is_finished and last.outputs[0].finish_reason
        assert last.outputs[0].num_run == len(request.tokens) - 1
        again = make_request("again", request.tokens, max_tokens=1)
        outputs_of(engine, [again])
        assert again.num_cached == (len(request.tokens) - 1) // BLOCK_SIZE * BLOCK_SIZE


def test_others_hear_of_verified_tokens_alone() -> None:
    expected = echo_output(range(11), 24, VOCAB)
    engine, request = drafting({"r": expected}), make_request(max_tokens=24)
    known: list[bool] = []
    names: set[bytes] = set()

    def on_layer(layer: int, chunks: Sequence[ScheduledChunk]) -> None:
        known.extend(
            chunk.request.num_computed + chunk.num_tokens == len(chunk.request.tokens)
            for chunk in chunks
        )
        names.update(engine.pool.prefixes.names())

    engine.add(request)
    while engine.has_work:
        engine.step(StepHooks(on_layer=on_layer))

    assert request.output == expected
    assert all(known)
    plain, same = make_engine(), make_request(max_tokens=24)
    outputs_of(plain, [same])
    assert names <= set(plain.pool.prefixes.names()) == set(engine.pool.prefixes.names())


def test_blocks_of_drafts_are_given_back_and_are_none_that_somebody_waits_for() -> None:
    answers = {str(i): echo_output(range(i, i + 9), 40, VOCAB) for i in range(3)}
    engine = drafting(answers, errs_every=2, scheduler=SchedulerConfig(max_running=2))
    requests = [make_request(str(i), range(i, i + 9), max_tokens=40) for i in range(3)]
    for request in requests:
        engine.add(request)

    while engine.has_work:
        engine.step()
        for request in requests:
            if request.num_computed and engine.request(request.request_id):
                held = engine.pool.table(request.holder)
                assert len(held) <= engine.pool.layout.num_blocks_for(len(request.tokens))

    assert [request.output for request in requests] == list(answers.values())
    assert engine.stats.num_preempted == 0


def test_drafts_take_no_token_of_the_pass_from_a_prompt() -> None:
    expected = echo_output(range(11), 30, VOCAB)
    scheduler = SchedulerConfig(max_batch_tokens=16)
    engine = drafting({"1": expected, "2": []}, scheduler=scheduler)
    engine.add(make_request("1", range(11), max_tokens=30))
    for _ in range(3):
        engine.step()
    engine.add(make_request("2", range(100, 140), max_tokens=1))

    report = engine.step()

    assert (report.num_tokens, report.num_drafted) == (16, 0)


def test_a_request_that_leaves_in_mid_draft_leaves_nothing_behind() -> None:
    answers = {str(i): echo_output(range(i, i + 9), 40, VOCAB) for i in range(2)}
    engine = drafting(answers)
    for i in range(2):
        engine.add(make_request(str(i), range(i, i + 9), max_tokens=40))
    for _ in range(4):
        engine.step()

    gone = engine.abort("0")
    run(engine)

    assert gone is not None and gone.output == answers["0"][: len(gone.output)]
    assert len(gone.tokens) == gone.num_computed + 1
    assert engine.pool.num_in_use == 0


def test_a_request_that_was_taken_over_is_drafted_for_from_its_first_step_on() -> None:
    prompt, answer = list(range(11)), echo_output(range(11), 20, VOCAB)
    other = make_engine()
    engine = drafting({"r": answer}, errs_every=100)
    request = handed_over(other, engine, prompt, GREEDY)

    report = engine.step()

    assert report.num_drafted == report.num_accepted == 5
    assert report.first_scheduled == (request,)
    run(engine)
    assert request.output == answer


def test_a_grammar_that_was_tried_with_drafts_goes_on_where_it_was() -> None:
    """A model that says nothing: only the grammar and the noise decide."""
    tokenizer = tiny_tokenizers.byte_level()
    assert tiny_tokenizers.vocab_size(tokenizer) <= VOCAB
    compiler = LlGuidanceCompiler(
        GrammarChecker(lambda: tokenizer, [0]), vocab_size=VOCAB, eos_token_ids=[0]
    )
    grammar = replace(LETTERS, source="(ab|cde?f|gh*){12,}z")

    def request() -> Request:
        sampling = SamplingParams(temperature=90.0, seed=3, max_tokens=40, grammar=grammar)
        return Request("r", range(1, 20), sampling=sampling, matcher=compiler.compile(grammar))

    plain, drafted = request(), request()
    outputs_of(make_engine(eos_token_ids=(0,)), [plain])
    engine = drafting({"r": plain.output}, eos_token_ids=(0,), errs_every=3)

    outputs_of(engine, [drafted])

    assert drafted.output == plain.output
    assert len(plain.output) > 8
    assert engine.stats.num_accepted > 0


def test_an_output_that_is_not_finite_behind_a_draft_fails_the_step_after() -> None:
    expected = echo_output(range(11), 24, VOCAB)
    engine, request = drafting({"r": expected}, errs_every=100), make_request(max_tokens=24)
    logits, given = engine.runner.logits, 13

    def failing(hidden: object) -> object:
        """The output behind so many known tokens is not finite."""
        found = logits(hidden)  # type: ignore[arg-type]
        row = 11 + given - len(request.tokens)
        if len(request.output) and 0 <= row < len(found):
            found[row] = float("nan")
        return found

    engine.runner.logits = failing  # type: ignore[method-assign, assignment]

    reports = outputs_of(engine, [request])

    assert request.output == expected[:given]
    assert isinstance(reports[-1].outputs[0].error, Unavailable)
    assert not set(engine.pool.prefixes.names())


def test_the_reason_of_an_end_is_the_same() -> None:
    expected = echo_output(range(11), 20, VOCAB)
    engine = drafting({"r": expected}, errs_every=100, eos_token_ids=(expected[9],))

    *_, last = outputs_of(engine, [make_request(max_tokens=20)])

    assert last.outputs[0].finish_reason is FinishReason.STOP
