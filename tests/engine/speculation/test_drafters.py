"""What each method guesses, and from what."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from tests.echo_engines import BLOCK_SIZE, VOCAB, make_engine, make_request, run
from torch import Tensor

from baton.core.sampling import SamplingParams
from baton.engine.batch.batch import Chunk, OnLayer, ignore_layer
from baton.engine.config import SchedulerConfig
from baton.engine.passes.echo import EchoRunner, echo_info, echo_output
from baton.engine.request.request import Phase, Request
from baton.engine.speculation.draft_budget import FixedBudget
from baton.engine.speculation.draft_model import ModelDrafter
from baton.engine.speculation.drafter import NO_DRAFT, Drafter
from baton.engine.speculation.ngram import NgramDrafter
from baton.engine.speculation.request_texts import RequestTexts
from baton.engine.speculation.speculation import Speculation
from baton.engine.speculation.suffix import MAX_RECENT, MAX_RECENT_IN_ALL, SuffixDrafter
from baton.kernels.drafting.token_text import PIECE, TAIL, ReferenceText


def guess(drafter: Drafter, tokens: Sequence[int], *, most: int = 4, **request: str) -> list[int]:
    asking = Request("r", tokens, sampling=SamplingParams(), **request)  # type: ignore[arg-type]
    return list(drafter.propose([asking], most)[0].tokens)


@pytest.mark.parametrize("make", [NgramDrafter, SuffixDrafter])
def test_what_stood_behind_the_longest_match_is_guessed(make: type[Drafter]) -> None:
    assert guess(make(), [1, 2, 3, 8, 8, 9, 2, 3, 7, 7, 1, 2, 3]) == [8, 8, 9, 2]
    assert guess(make(), [5, 6, 1, 5, 6]) == [1, 5, 6]
    assert guess(make(), [1, 2, 3, 4]) == guess(make(), [1]) == []


def test_of_as_long_matches_ngram_takes_the_last_and_suffix_what_most_of_them_say() -> None:
    text = [1, 2, 5, 6, 0, 1, 2, 5, 6, 9, 1, 2, 7, 3, 1, 2]

    assert guess(NgramDrafter(), text, most=2) == [7, 3]
    assert guess(SuffixDrafter(), text, most=2) == [5, 6]


def test_suffix_knows_outputs_that_ended_of_the_same_tenant_and_salt_alone() -> None:
    drafter = SuffixDrafter()
    ended = Request(
        "1", [9], output=[1, 2, 3, 4, 5], sampling=SamplingParams(), salt=b"a", tenant="t"
    )
    assert drafter.propose([ended], 4) == [NO_DRAFT]
    drafter.forget(ended)

    def guessed(**owner: object) -> list[int]:
        return guess(drafter, [7, 2, 3], **owner)  # type: ignore[arg-type]

    assert guessed(salt=b"a", tenant="t") == [4, 5]
    assert guessed(salt=b"b", tenant="t") == guessed(salt=b"a", tenant="u") == guessed() == []


def test_suffix_forgets_the_older_of_what_ended() -> None:
    drafter = SuffixDrafter()
    for number in range(5):
        output = [1000 * number + at % 1000 for at in range(MAX_RECENT // 4)]
        ended = Request(str(number), [9], output=output, sampling=SamplingParams())
        drafter.propose([ended], 1)
        drafter.forget(ended)

    assert guess(drafter, [4001, 4002], most=1) == [4003]
    assert guess(drafter, [1, 2], most=1) == []


def test_suffix_keeps_a_bounded_number_of_tokens_of_all_tenants_together() -> None:
    drafter = SuffixDrafter()
    outputs = [[1000 * number, 7, *range(MAX_RECENT // 2 - 2)] for number in range(70)]
    for number, output in enumerate(outputs):
        ended = Request("r", [9], output=output, sampling=SamplingParams(), tenant=str(number))
        drafter.forget(ended)

    assert 70 * MAX_RECENT // 2 > MAX_RECENT_IN_ALL
    assert guess(drafter, [0, 7], most=1, tenant="0") == []
    assert guess(drafter, [69_000, 7], most=1, tenant="69") == [0]
    assert sum(map(len, drafter._recent.values())) <= MAX_RECENT_IN_ALL


def test_suffix_keeps_what_ended_while_nothing_was_drafted() -> None:
    drafter = SuffixDrafter()

    drafter.forget(Request("1", [9], output=[1, 2, 3, 4], sampling=SamplingParams()))

    assert guess(drafter, [2, 3]) == [4]


@pytest.mark.parametrize("make", [NgramDrafter, SuffixDrafter])
def test_long_prompts_are_indexed_a_piece_a_step(make: type[NgramDrafter | SuffixDrafter]) -> None:
    prompt = [*range(10, PIECE), 5, 6, 7, 8, *range(10, PIECE), 5, 6]
    requests = [Request(name, prompt, sampling=SamplingParams()) for name in "ab"]
    drafter, drafts, num_indexed = make(), [], [0]
    for _ in range(5):
        drafts = drafter.propose(requests, 2)
        num_indexed.append(sum(map(len, drafter._texts._indexes.values())))

    assert max(after - before for before, after in pairwise(num_indexed)) <= PIECE
    assert [draft.tokens for draft in drafts] == [[7, 8], [7, 8]]


def test_no_step_sorts_the_texts_of_all_requests_at_once_and_each_has_its_turn() -> None:
    """Each has to sort all of its own once it has grown."""
    texts = RequestTexts(ReferenceText)
    length = PIECE // 2 + TAIL
    requests = [Request(str(n), [*range(length)], sampling=SamplingParams()) for n in range(8)]
    while any(len(index) < length for index in texts.follow(requests)):
        pass
    for request in requests:
        request.tokens.extend(range(2 * TAIL))
    total = length + 2 * TAIL

    num_done = []
    for _ in range(8):
        before = [len(index) for index in texts._indexes.values()]
        after = [len(index) for index in texts.follow(requests)]
        num_done.append(sum(new > old for new, old in zip(after, before, strict=True)))
    assert num_done == [1] * 8
    assert [len(index) for index in texts.follow(requests)] == [total] * 8


class Watched(EchoRunner):
    """Counts the tokens it computes."""

    num_tokens = 0

    def forward(self, chunks: Sequence[Chunk], on_layer: OnLayer = ignore_layer) -> Tensor:
        self.num_tokens += sum(len(chunk.tokens) for chunk in chunks)
        return super().forward(chunks, on_layer)


def small_model(num_blocks: int = 256) -> Watched:
    """It says what the large one does, and checks its KV in each pass."""
    return Watched(echo_info(vocab_size=VOCAB), num_blocks=num_blocks, block_size=BLOCK_SIZE)


def model_drafter(runner: Watched, max_batch_tokens: int = 64) -> ModelDrafter:
    return ModelDrafter(runner, max_batch_tokens=max_batch_tokens, eos_token_ids=())


def test_a_draft_model_computes_each_token_once_where_all_it_says_is_right() -> None:
    small, engine = small_model(), make_engine()
    engine.speculation = Speculation(model_drafter(small), FixedBudget(3))
    request = make_request(max_tokens=40)
    engine.add(request)

    run(engine)

    assert request.output == echo_output(range(11), 40, VOCAB)
    assert engine.stats.num_accepted == engine.stats.num_drafted > 28
    assert small.num_tokens <= len(request.tokens)


def test_a_draft_model_goes_on_behind_what_it_guessed_wrong() -> None:
    drafter, request = model_drafter(small_model()), make_request()
    drafter.propose([request], 4)
    for token in (500, 501, 502):
        request.append(token)

    (draft,) = drafter.propose([request], 4)

    assert list(draft.tokens) == echo_output(request.tokens, 4, VOCAB)


def test_a_long_prompt_is_read_by_the_draft_model_over_several_steps() -> None:
    drafter, request = model_drafter(small_model(), 64), make_request(prompt=range(150))
    tokens = [list(drafter.propose([request], 2)[0].tokens) for _ in range(3)]

    assert tokens == [[], [], echo_output(range(150), 2, VOCAB)]


def test_a_draft_model_without_blocks_drafts_for_those_who_have_some() -> None:
    drafter = model_drafter(small_model(num_blocks=6))
    first, second = make_request("1", range(14)), make_request("2", range(100, 114))

    drafts = drafter.propose([first, second], 2)
    drafter.forget(first)
    (after,) = drafter.propose([second], 2)

    assert [len(draft.tokens) for draft in drafts] == [2, 0]
    assert list(after.tokens) == echo_output(range(100, 114), 2, VOCAB)


def test_a_draft_model_keeps_no_blocks_of_who_was_preempted_or_outgrew_it() -> None:
    drafter = model_drafter(small_model(num_blocks=16))
    requests = [make_request(name, range(at, at + 14)) for at, name in enumerate("ab")]
    for request in requests:
        request.phase = Phase.RUNNING
    drafter.propose(requests, 2)
    preempted, growing = requests
    assert drafter._pool.num_in_use == 8

    preempted.phase = Phase.WAITING
    drafter.propose([growing], 2)
    assert drafter._pool.num_in_use == 4

    for token in range(drafter._runner.info.max_model_len):
        growing.append(token % VOCAB)
    assert drafter.propose([growing], 2) == [NO_DRAFT]
    assert drafter._pool.num_in_use == 0


def test_a_draft_model_draws_with_the_noise_of_the_request() -> None:
    """Temperature makes the echo's best token one of many: it is the noise that decides."""
    engine = make_engine(scheduler=SchedulerConfig(max_running=4))
    engine.speculation = Speculation(model_drafter(small_model()), FixedBudget(4))
    sampling = SamplingParams(temperature=60.0, seed=7, frequency_penalty=1.0, max_tokens=40)
    request = Request("r", range(9), sampling=sampling)
    engine.add(request)

    run(engine)

    assert engine.stats.num_accepted == engine.stats.num_drafted
    assert len(set(request.output)) > 20
