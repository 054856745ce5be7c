"""The published rule: what is kept and drawn is distributed as the model draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from tests.echo_engines import VOCAB, make_engine, run
from tests.guessing_drafter import GuessingDrafter
from torch import Tensor

from baton.core.messages import SamplingParams
from baton.engine.config import EngineConfig, SchedulerConfig, SpeculationConfig
from baton.engine.engine import Engine
from baton.engine.request.request import Request
from baton.engine.sampling.acceptance import kept_or_redrawn
from baton.engine.speculation.draft_budget import FixedBudget
from baton.engine.speculation.speculation import Speculation

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

    tokens = kept_or_redrawn(p.expand(NUM_DRAWS, -1), q.expand(NUM_DRAWS, -1), drafted, streams)

    counts = tokens.bincount(minlength=5).tolist()
    assert counts[4] == 0
    assert chi_square(dict(enumerate(counts)), p.tolist()) < 16.3  # one in a thousand, 3 degrees
    kept = float((tokens == drafted).float().mean())
    assert abs(kept - float(torch.minimum(p, q).sum())) < 0.002


def published_engine(scores: Tensor) -> Engine:
    """A model that says the same wherever it is asked."""
    engine = make_engine(num_blocks=8192)
    config = EngineConfig(
        cache=replace(EngineConfig().cache, block_size=engine.pool.layout.block_size),
        scheduler=SchedulerConfig(max_running=400),
        speculation=SpeculationConfig(acceptance="published"),
    )
    engine = Engine(engine.runner, config)
    engine.runner.logits = lambda hidden: scores.expand(len(hidden), -1)  # type: ignore[method-assign]
    return engine


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
