"""What heads read of prompts that somebody else computed, or that were computed before."""

from __future__ import annotations

from typing import Any

import pytest
from tests.echo_engines import VOCAB, make_engine, make_request, run
from tests.echo_head import FEATURES, EchoHead
from tests.engine.speculation.headed_engines import Never, ask, copy_kv, with_head
from torch import Tensor

from baton.core.clock import ManualClock
from baton.core.kv_pool import Holder, HolderKind
from baton.core.messages import Pooling
from baton.core.sampling import SamplingParams
from baton.engine.passes.echo import EchoRunner, echo_output
from baton.engine.request.request import Request
from baton.engine.speculation import head_drafter, head_passes
from baton.engine.speculation.feature_keeper import FeatureKeeper, keeping
from baton.engine.speculation.head_drafter import HeadDrafter


def test_a_prompt_that_another_replica_computed_is_drafted_for_from_its_first_token_on() -> None:
    engine = make_engine()
    head = with_head(engine)
    prompt = list(range(32))
    [first] = echo_output(prompt, 1, VOCAB)
    other = make_engine()
    ask(other, prompt, 2)
    lease = Holder(HolderKind.LEASE, "lease")
    engine.pool.reserve(lease, prompt, b"")
    assert isinstance(engine.runner, EchoRunner)
    copy_kv(other, engine, lease, prompt)
    sampling = SamplingParams(temperature=0.0, max_tokens=30)
    request = Request("r", prompt, output=[first], sampling=sampling)

    engine.adopt(request, lease)
    run(engine)

    assert request.output == echo_output(prompt, 30, VOCAB)
    assert request.num_draft_missing == 32
    assert engine.stats.num_accepted == engine.stats.num_drafted > 15
    assert head.num_first == 1
    assert engine.speculation is not None
    assert engine.speculation.metrics()["draft_missing_tokens_total"] == 32


@pytest.mark.parametrize("max_read", [40, 2048])
def test_features_that_came_with_a_long_prompt_are_read_beside_several_passes(
    max_read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    nums_read: list[int] = []
    read = EchoHead.__call__

    def watched(head: EchoHead, hidden: Tensor, *others: object) -> Tensor:
        nums_read.append(len(hidden))
        return read(head, hidden, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(EchoHead, "__call__", watched)
    monkeypatch.setattr(head_drafter, "MAX_RECALLED", max_read)
    monkeypatch.setattr(head_passes, "MAX_READ", max_read)
    prompt = [(13 * at) % 500 for at in range(203)]
    engine, other = make_engine(features=FEATURES), make_engine(features=FEATURES)
    head = with_head(engine)
    other.speculation = keeping(FeatureKeeper(join=head.joined))
    ask(other, prompt, 5)
    lease = Holder(HolderKind.LEASE, "lease")
    engine.pool.reserve(lease, prompt, b"")
    copy_kv(other, engine, lease, [*prompt, *echo_output(prompt, 4, VOCAB)])
    sampling = SamplingParams(temperature=0.0, max_tokens=60)
    request = Request("r", prompt, output=echo_output(prompt, 1, VOCAB), sampling=sampling)
    clock = engine.clock = ManualClock()
    recall = HeadDrafter.recall

    def slow(drafter: HeadDrafter, *given: Any) -> None:
        recall(drafter, *given)
        clock.advance(1.0)

    monkeypatch.setattr(HeadDrafter, "recall", slow)

    engine.adopt(request, lease)
    neighbour = make_request("n", range(5), max_tokens=30)
    engine.add(neighbour)
    run(engine)

    assert request.output == echo_output(prompt, 60, VOCAB)
    assert max(nums_read) <= max_read + 2 * head_drafter.MIN_READ
    assert (request.num_draft_missing, head.num_first) == (0, 2)
    assert engine.stats.num_accepted == engine.stats.num_drafted > 40
    assert engine.stats.recall_ms > engine.stats.draft_ms == 0  # told apart from drafting


def test_of_prompts_that_were_only_embedded_no_features_are_found() -> None:
    engine = make_engine(num_blocks=32, features=FEATURES)
    head = with_head(engine)
    for first in (0, 100):  # so that something is left in every block
        ask(engine, range(first, first + 60), 20, f"before {first}")
    engine.pool.reset_cache()
    embedded = Request("e", range(200, 240), sampling=SamplingParams(), pooling=Pooling.LAST)
    engine.add(embedded)
    run(engine)
    num_first = head.num_first

    after = ask(engine, range(200, 240), 20, "after")

    assert after.num_cached == after.num_draft_missing == 36
    assert head.num_first == num_first + 1
    assert engine.stats.num_accepted == engine.stats.num_drafted


def test_a_prompt_that_goes_on_otherwise_misses_nothing_where_features_are_kept() -> None:
    engine = make_engine(features=FEATURES)
    head = with_head(engine)
    ask(engine, range(40), 8, "before")

    other = ask(engine, [*range(24), *range(100, 120)], 8, "other")

    assert (other.num_cached, other.num_draft_missing, head.num_first) == (24, 0, 1)


def test_after_a_pause_what_the_head_was_not_read_is_found_where_features_are_kept() -> None:
    budget = Never(3)
    budget.is_on = True
    engine = make_engine(features=FEATURES)
    head = with_head(engine, errs_every=2, budget=budget)
    before, late = make_request("r", range(90), max_tokens=300), make_request("l", range(100, 130))
    late.sampling = SamplingParams(temperature=0.0, max_tokens=200)
    engine.add(before)
    for _ in range(6):  # drafts that were wrong are in what it was shown last
        engine.step()
    budget.is_on, budget.is_paused, budget.is_inactive = False, True, True
    engine.add(late)
    num_read = head.num_pairs
    for _ in range(100):
        engine.step()
    num_read_while_paused = head.num_pairs - num_read
    budget.is_on, budget.is_paused, budget.is_inactive = True, False, False

    run(engine)

    assert num_read_while_paused == 0
    assert before.output == echo_output(range(90), 300, VOCAB)
    assert late.output == echo_output(range(100, 130), 200, VOCAB)
    assert (before.num_draft_missing, late.num_draft_missing, head.num_first) == (0, 0, 2)
    assert engine.stats.num_accepted > 60
    assert engine.speculation is not None
    metrics = engine.speculation.metrics()
    assert metrics["draft_missing_tokens_total"] == 0
    assert metrics["draft_recalled_tokens_total"] == 90 + 100 + 30 + 99  # and no token twice
