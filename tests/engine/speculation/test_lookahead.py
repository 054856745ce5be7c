"""What comes of wrong guesses is guessed next, and kept; tokens are those of plain decoding."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from tests.echo_engines import VOCAB, make_engine, make_request, run

from baton.core.sampling import SamplingParams
from baton.engine.config import CacheConfig, EngineConfig, SpeculationConfig
from baton.engine.engine import Engine
from baton.engine.request.request import Request
from baton.engine.speculation.assemble import speculation_of
from baton.engine.speculation.draft_budget import FixedBudget
from baton.engine.speculation.lookahead import MAX_POOLED, LookaheadDrafter
from baton.engine.speculation.ngram_pool import MAX_NGRAMS, MAX_OF_TOKEN, NgramPool
from baton.engine.speculation.speculation import Speculation

NOISY = SamplingParams(temperature=10_000.0, seed=4, max_tokens=10, ignore_eos=True)
"""What is drawn depends on the position alone, by its noise: whatever stands before."""


def guess(drafter: LookaheadDrafter, request: Request, most: int = 4) -> list[int]:
    return list(drafter.propose([request], most)[0].tokens)


def test_what_was_drawn_behind_a_wrong_draft_is_right_where_that_did_not_matter() -> None:
    """The prompt has an n-gram for the first token, all wrong; the next four are then right."""
    probe = make_engine()
    first = Request("r", range(9), sampling=NOISY)
    probe.add(first)
    probe.step()
    prompt = 9 * first.output
    plain, drafted = (Request("r", prompt, sampling=NOISY) for _ in range(2))
    settings = SpeculationConfig(method="lookahead", adaptive=False, max_tokens=4)
    reference, engine = make_engine(), make_engine()
    engine.speculation = speculation_of(
        EngineConfig(speculation=settings), engine.info, device="cpu"
    )
    reference.add(plain)
    engine.add(drafted)

    run(reference)
    run(engine)

    assert drafted.output == plain.output
    assert (engine.stats.num_drafted, engine.stats.num_accepted) == (8, 4)
    assert engine.speculation is not None
    drafter = engine.speculation.drafter
    assert isinstance(drafter, LookaheadDrafter) and not drafter._trajectories


def test_guesses_go_on_where_the_last_pass_left_them_and_its_ngrams_are_found() -> None:
    drafter = LookaheadDrafter()
    request = make_request(prompt=[1, 2, 3, 4, 5])
    assert guess(drafter, request) == []

    drafter.drew(request, [10, 11, 12, 13], [10, 20, 21, 22, 23])
    for token in (10, 20):
        request.append(token)
    assert guess(drafter, request, 3) == [21, 22, 23]

    drafter.drew(request, [21, 22, 23], [30, 31, 32, 33])
    request.append(30)
    assert guess(drafter, request, 4) == [31, 32, 33, 5]  # and any token to be refined
    request.append(11)
    assert guess(drafter, request, 3) == [12, 13, 23]  # as the first pass had it


def test_of_ngrams_that_begin_alike_those_in_the_same_place_or_as_guessed_come_first() -> None:
    pool = NgramPool()
    pool.add(1, 5, (6, 0, 0))
    pool.add(2, 5, (7, 0, 0))
    pool.add(3, 5, (8, 0, 0))

    assert [pool.find(before, 5, None) for before in (1, 2, 9)] == [
        ((6, 0, 0), True, False),
        ((7, 0, 0), True, False),
        ((8, 0, 0), False, False),
    ]
    assert pool.find(9, 5, 6) == ((6, 0, 0), False, True)
    assert pool.find(2, 5, 6) == ((7, 0, 0), True, False)
    assert pool.find(1, 6, None) is None


def test_a_pool_keeps_the_youngest_of_each_token_and_so_many_in_all() -> None:
    pool = NgramPool()
    for at in range(2 * MAX_OF_TOKEN):
        pool.add(0, 1, (at, 0, 0))
    assert len(pool) == MAX_OF_TOKEN
    assert pool.find(0, 1, 0) == ((2 * MAX_OF_TOKEN - 1, 0, 0), True, False)

    for first in range(2, MAX_NGRAMS + 2):
        pool.add(0, first, (0, 0, 0))
    assert len(pool) == MAX_NGRAMS
    assert pool.find(0, 1, None) is None
    assert pool.find(0, MAX_NGRAMS, None) is not None


def test_texts_are_pooled_a_stretch_a_step_and_of_long_ones_the_end() -> None:
    drafter = LookaheadDrafter()
    prompt = [7, 8, 9, 10, *range(100, 100 + MAX_POOLED), 7]
    requests = [make_request(name, prompt) for name in "ab"]

    drafts = [drafter.propose(requests, 3) for _ in range(4)]

    assert [list(draft.tokens) for draft in drafts[-1]] == [[8, 9, 10]] * 2
    sizes = sorted(len(one.pool) for one in drafter._trajectories.values())
    assert sizes == [len(prompt) - 3] * 2
    assert list(drafts[0][1].tokens) != [8, 9, 10]
    long = make_request("long", [7, 8, 9, 10, *range(100, 100 + 2 * MAX_NGRAMS), 7])
    for _ in range(4):
        assert guess(drafter, long, 3) == []


@pytest.mark.parametrize("why", ["published", "not finite"])
def test_nothing_is_made_of_what_the_model_did_not_draw(why: str) -> None:
    """By the published rule a row says its draft, or a draw of what is left."""
    told: list[Sequence[int]] = []

    class Recorder(LookaheadDrafter):
        def drew(self, request: Request, drafted: Sequence[int], drawn: Sequence[int]) -> None:
            told.append(drawn)

    made = make_engine()
    layout = made.pool.layout
    acceptance = "published" if why == "published" else "draws"
    config = EngineConfig(
        cache=CacheConfig(block_size=layout.block_size),
        speculation=SpeculationConfig(acceptance=acceptance),  # type: ignore[arg-type]
    )
    engine, drafter = Engine(made.runner, config), Recorder()
    engine.speculation = Speculation(drafter, FixedBudget(3), refiner=drafter)
    logits = engine.runner.logits

    def failing(hidden: torch.Tensor) -> torch.Tensor:
        found = logits(hidden)
        if why == "not finite" and len(found) > 1:
            found[-1] = torch.nan
        return found

    engine.runner.logits = failing  # type: ignore[method-assign]
    request = make_request(prompt=range(VOCAB), max_tokens=12)
    engine.add(request)
    while engine.has_work and engine.stats.num_steps < 8:
        engine.step()

    assert engine.stats.num_drafted > 0
    assert not told
