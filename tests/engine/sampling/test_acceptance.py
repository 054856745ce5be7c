"""The published rule: what is kept and drawn is distributed as the model draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from weakref import ref

import pytest
import torch
from tests.echo_engines import VOCAB, make_engine, run
from tests.guessing_drafter import GuessingDrafter
from torch import Tensor

from baton.core.sampling import SamplingParams
from baton.engine.config import EngineConfig, SchedulerConfig, SpeculationConfig
from baton.engine.engine import Engine
from baton.engine.passes.echo import EchoRunner
from baton.engine.request.request import Request
from baton.engine.sampling import sampling_plan
from baton.engine.sampling.acceptance import are_kept, redrawn
from baton.engine.sampling.sampler import chances_of, draw
from baton.engine.sampling.sampling_plan import SamplingPlan
from baton.engine.sampling.sampling_row import SamplingRow
from baton.engine.schedule.verification import verified
from baton.engine.speculation.draft_budget import FixedBudget
from baton.engine.speculation.draft_model import ModelDrafter
from baton.engine.speculation.drafter import Draft
from baton.engine.speculation.speculation import Speculation
from baton.kernels.sampling.draw_token import relate

NUM_DRAWS = 1_000_000


def chi_square(found: Mapping[int, int], expected: Sequence[float]) -> float:
    total = sum(found.values())
    return sum(
        (found.get(token, 0) - total * share) ** 2 / (total * share)
        for token, share in enumerate(expected)
        if share
    )


def test_a_million_drafts_drawn_from_another_distribution_come_to_that_of_the_model() -> None:
    p = torch.tensor([0.45, 0.3, 0.2, 0.05, 0.0])
    q = torch.tensor([0.1, 0.5, 0.15, 0.05, 0.2])
    drafted = q.multinomial(NUM_DRAWS, True, generator=torch.Generator().manual_seed(1))
    streams = torch.zeros(NUM_DRAWS, 4, dtype=torch.int64)
    streams[:, 2] = torch.arange(NUM_DRAWS)

    is_kept = are_kept(p[drafted], q[drafted], drafted, streams)
    left = (p - q).clamp(min=0).expand(NUM_DRAWS, -1)[~is_kept]
    tokens = drafted.masked_scatter(~is_kept, redrawn(left, streams[~is_kept]))

    counts = tokens.bincount(minlength=5).tolist()
    assert counts[4] == 0
    assert chi_square(dict(enumerate(counts)), p.tolist()) < 16.3  # one in a thousand, 3 degrees
    kept = float((tokens == drafted).float().mean())
    assert abs(kept - float(torch.minimum(p, q).sum())) < 0.002


def test_of_the_drafts_of_a_request_only_the_first_that_is_not_kept_is_drawn_anew() -> None:
    """Token 3 is drafted: sure to be kept where its score is high, and hardly ever elsewhere."""
    logits = torch.zeros(8, 16)
    logits[:, 3] = torch.tensor([60.0, -60, -60, 0, -60, 60, -60, 0])
    drafted = [3, 3, 3, None, 3, 3, 3, None]
    params = SamplingParams(temperature=1.0, seed=5)
    rows = [SamplingRow(params, (0,), [0] * number) for number in range(8)]

    tokens = draw(logits, SamplingPlan(rows, "cpu", drafted), ()).tokens.tolist()

    assert [token == 3 for token in tokens[:3]] == [True, False, True]
    assert [token == 3 for token in tokens[4:7]] == [False, True, True]


def test_drafts_judged_a_few_at_a_time_come_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = 2 * torch.randn(40, 16, generator=torch.Generator().manual_seed(1))
    likely = logits.argmax(-1).tolist()
    drafted = [None if at % 5 == 4 else likely[at] for at in range(40)]
    params = SamplingParams(temperature=1.0, top_k=12, seed=5)
    rows = [SamplingRow(params, (0,), [0] * number) for number in range(40)]

    def given() -> list[tuple[int, ...]]:
        tokens = draw(logits, SamplingPlan(rows, "cpu", drafted), ()).tokens.tolist()
        starts = range(0, 40, 5)
        return [verified(likely[a : a + 4], tokens[a : a + 5], [True] * 5) for a in starts]

    at_once = given()
    monkeypatch.setattr(sampling_plan, "STRETCH_BYTES", 3 * 16 * 4)
    assert given() == at_once
    assert {len(tokens) for tokens in at_once} > {1}


@pytest.mark.parametrize("typical_p", [1.0, 0.9])
def test_what_drafts_are_drawn_from_is_worked_out_a_few_rows_at_a_time(
    typical_p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may end a request is left out: here a likely token of the rows that may."""
    logits = torch.randn(7, 16, generator=torch.Generator().manual_seed(1))
    params = SamplingParams(temperature=1.0, top_k=12, typical_p=typical_p, seed=5)
    rows = [SamplingRow(params, (0,), ()) for _ in range(6)]
    rows.insert(3, SamplingRow(replace(params, temperature=0.0), (0,), ()))
    endings = [[*logits[row].topk(row % 3).indices.tolist(), 99] for row in range(7)]
    nums_related: list[int] = []

    def counted(scores: Tensor, temperature: Tensor) -> Tensor:
        nums_related.append(len(scores))
        return relate(scores, temperature)

    monkeypatch.setattr(sampling_plan, "relate", counted)

    def chances() -> dict[int, Tensor]:
        return chances_of(logits, SamplingPlan(rows, "cpu"), (), endings)

    at_once = chances()
    assert max(nums_related) == 6
    nums_related.clear()
    monkeypatch.setattr(sampling_plan, "STRETCH_BYTES", 2 * 16 * 4)
    few_at_a_time = chances()

    assert max(nums_related) == 2
    assert few_at_a_time.keys() == at_once.keys() == {0, 1, 2, 4, 5, 6}
    for row, q in few_at_a_time.items():
        assert torch.equal(q, at_once[row])
        assert q.sum() == pytest.approx(1)
        assert not any(q[token] for token in endings[row] if token < 16)


def always_saying(scores: Tensor) -> EchoRunner:
    """A model that says the same wherever it is asked."""
    runner = make_engine(num_blocks=8192).runner
    assert isinstance(runner, EchoRunner)
    runner.logits = lambda hidden: scores.expand(len(hidden), -1)  # type: ignore[method-assign]
    return runner


def published_engine(scores: Tensor) -> Engine:
    runner = always_saying(scores)
    config = EngineConfig(
        cache=replace(EngineConfig().cache, block_size=runner.cache.layout.block_size),
        scheduler=SchedulerConfig(max_running=400),
        speculation=SpeculationConfig(acceptance="published"),
    )
    return Engine(runner, config)


def test_twenty_thousand_tokens_of_an_engine_are_distributed_as_without_drafts() -> None:
    """Drafts are of the likeliest token, of an unlikely one, and of one that top-k leaves out."""
    scores = torch.full((VOCAB,), -9.0)
    scores[:6] = torch.tensor([1.0, 0.5, 0.2, -0.3, -0.8, -1.0])
    engine = published_engine(scores)
    names = [str(number) for number in range(400)]
    guesses = [(0, 4, 0, 3, 100)[at % 5] for at in range(51)]
    drafter = GuessingDrafter(dict.fromkeys(names, guesses), errs_every=1000)
    engine.speculation = Speculation(drafter, FixedBudget(3))
    requests = [
        Request(
            name,
            [7, 8, 9],
            sampling=SamplingParams(
                temperature=0.9, top_k=5, seed=int(name), max_tokens=51, ignore_eos=True
            ),
        )
        for name in names
    ]
    for request in requests:
        engine.add(request)

    run(engine)

    expected = (scores[:5] / 0.9).softmax(-1).tolist()
    tokens = [token for request in requests for token in request.output[1:]]
    assert len(tokens) == 20_000
    assert set(tokens) <= set(range(5))
    assert chi_square(Counter(tokens), expected) < 18.5  # one in a thousand, 4 degrees
    pairs = Counter(
        5 * a + b for r in requests for a, b in zip(r.output, r.output[1:], strict=False)
    )
    both = [a * b for a in expected for b in expected]
    assert chi_square(pairs, both) < 60  # 24 degrees
    assert engine.stats.num_drafted > 2 * engine.stats.num_accepted > 4000


def test_nothing_keeps_what_drafts_were_drawn_from_behind_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each holds a row of the vocabulary per token drafted, during a whole pause otherwise."""
    engine = published_engine(torch.zeros(VOCAB))
    drafter = ModelDrafter(
        always_saying(torch.zeros(VOCAB)), max_batch_tokens=64, eos_token_ids=(), has_own_noise=True
    )
    engine.speculation = Speculation(drafter, FixedBudget(3))
    told: list[ref[Tensor]] = []

    def propose(requests: Sequence[Request], max_tokens: int) -> list[Draft]:
        drafts = ModelDrafter.propose(drafter, requests, max_tokens)
        told.extend(ref(q) for draft in drafts for q in draft.q)
        return drafts

    monkeypatch.setattr(drafter, "propose", propose)
    for name in ("a", "b"):
        sampling = SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True)
        engine.add(Request(name, [7, 8, 9], sampling=sampling))

    while len(told) < 6:
        engine.step()

    assert engine.stats.num_drafted == 6
    assert [q() for q in told] == [None] * 6


@pytest.mark.parametrize(
    "stops",
    [pytest.param((), marks=pytest.mark.wide), (2,)],
    ids=["to the end", "to a token that ends"],
)
def test_tokens_behind_drafts_that_were_drawn_are_distributed_as_without_them(
    stops: tuple[int, ...],
) -> None:
    """A small model of another mind drafts, by chance; what may end a request it never offers."""
    scores, others = torch.full((2, VOCAB), -9.0)
    scores[:6] = torch.tensor([1.0, 0.5, 0.2, -0.3, -0.8, -1.0])
    others[:6] = torch.tensor([-0.5, 1.2, 0.9, 0.1, -1.0, 0.3])
    engine = published_engine(scores)
    drafter = ModelDrafter(
        always_saying(others), max_batch_tokens=4096, eos_token_ids=(), has_own_noise=True
    )
    engine.speculation = Speculation(drafter, FixedBudget(3))
    sampling = SamplingParams(temperature=0.9, top_k=5, ignore_eos=True, stop_token_ids=stops)
    num_each, num_requests = (51, 400) if not stops else (200, 1200)
    requests = [
        Request(
            str(number), [7, 8, 9], sampling=replace(sampling, seed=number, max_tokens=num_each)
        )
        for number in range(num_requests)
    ]
    for request in requests:
        engine.add(request)

    run(engine)

    expected = (scores[:5] / 0.9).softmax(-1)
    tokens = [token for request in requests for token in request.output[1:]]
    assert len(tokens) == 20_000 if not stops else len(tokens) > 3000
    assert set(tokens) <= set(range(5))
    assert chi_square(Counter(tokens), expected.tolist()) < 18.5  # 1 in a thousand, 4 degrees
    # Of those that were drawn from q, sum min(p, q) are right: more than of those q is sure of.
    top = others.topk(5)
    q = torch.zeros(VOCAB).scatter_(0, top.indices, (top.values / 0.9).softmax(-1))
    if not stops:
        share = float(torch.minimum(expected, q[:5]).sum())
        assert engine.speculation is not None
        num_verified, num_right = engine.speculation.counts()[1:]
        first, num_runs = num_right[0], num_verified[0]
        assert abs(first / num_runs - share) < 4 * (share * (1 - share) / num_runs) ** 0.5
