"""Drafting by hidden states: what the head is shown, what it keeps, and what it misses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.echo_engines import BLOCK_SIZE, VOCAB, make_engine, make_request, run
from tests.echo_head import FEATURES, EchoHead
from tests.guessing_drafter import ErringDrafter
from torch import Tensor

from baton.core.clock import ManualClock
from baton.core.kv_pool import Holder, HolderKind
from baton.core.messages import Pooling
from baton.core.sampling import SamplingParams
from baton.engine.config import SchedulerConfig
from baton.engine.engine import Engine
from baton.engine.memory.kv_cache import KvCache
from baton.engine.models.heads.medusa import MedusaHeads
from baton.engine.passes.echo import EchoRunner, echo_output
from baton.engine.request.request import Phase, Request
from baton.engine.speculation import head_drafter
from baton.engine.speculation.draft_budget import FixedBudget
from baton.engine.speculation.feature_keeper import FeatureKeeper, keeping
from baton.engine.speculation.head_drafter import MIN_READ, HeadDrafter
from baton.engine.speculation.hidden_reader import HiddenReader, Shown
from baton.engine.speculation.medusa_drafter import MedusaDrafter
from baton.engine.speculation.speculation import Speculation


class Never(FixedBudget):
    """Until it is told otherwise."""

    is_on = False

    def begins(self, num_running: int) -> bool:
        return self.is_on


def with_head(
    engine: Engine,
    *,
    num_blocks: int = 256,
    errs_every: int = 0,
    budget: FixedBudget | None = None,
    is_parallel: bool = False,
) -> EchoHead:
    assert isinstance(engine.runner, EchoRunner)
    head = EchoHead(engine.runner, is_parallel=is_parallel)
    cache = KvCache(engine.info.layout(BLOCK_SIZE), num_blocks)
    drafter = HeadDrafter("mtp", head, cache, eos_token_ids=())
    drafting = ErringDrafter(drafter, errs_every) if errs_every else drafter
    engine.speculation = Speculation(drafting, budget or FixedBudget(3), reader=drafter)
    return head


def ask(engine: Engine, prompt: Sequence[int], num_tokens: int = 40, name: str = "r") -> Request:
    request = make_request(name, prompt, max_tokens=num_tokens)
    engine.add(request)
    run(engine)
    assert request.output == echo_output(prompt, num_tokens, VOCAB)
    return request


def test_a_head_reads_each_token_once_where_all_it_says_is_right() -> None:
    engine = make_engine()
    head = with_head(engine)

    request = ask(engine, range(11))

    assert engine.stats.num_accepted == engine.stats.num_drafted > 28
    assert head.num_first == 1  # only the first pair has none before it
    assert head.num_pairs - engine.stats.num_drafted <= len(request.tokens)


@pytest.mark.parametrize("is_parallel", [False, True])
@pytest.mark.parametrize("errs_every", [1, 3])
def test_what_was_drafted_wrong_leaves_nothing_behind(errs_every: int, is_parallel: bool) -> None:
    engine = make_engine()
    head = with_head(engine, errs_every=errs_every, is_parallel=is_parallel)

    ask(engine, range(11))

    assert engine.stats.num_accepted < engine.stats.num_drafted
    assert head.num_first == 1


def test_prompts_in_chunks_and_preempted_requests_are_read_without_a_gap() -> None:
    engine = make_engine(num_blocks=60, scheduler=SchedulerConfig(max_batch_tokens=80))
    head = with_head(engine, errs_every=4)
    prompts = [[(13 * i + j) % 500 for i in range(90)] for j in range(3)]
    requests = [make_request(str(j), prompt, max_tokens=60) for j, prompt in enumerate(prompts)]
    for request in requests:
        engine.add(request)

    run(engine)

    assert [r.output for r in requests] == [echo_output(p, 60, VOCAB) for p in prompts]
    assert engine.stats.num_preempted > 0
    assert head.num_first == 3
    assert [r.num_draft_missing for r in requests] == [0, 0, 0]


def test_masks_stand_for_pairs_in_one_pass_and_leave_none_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine()
    head = with_head(engine, is_parallel=True)
    passes: list[int] = []
    compute = EchoHead.__call__

    def counted(head: EchoHead, hidden: Tensor, *others: object) -> Tensor:
        passes.append(len(hidden))
        return compute(head, hidden, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(EchoHead, "__call__", counted)

    ask(engine, range(11))

    assert engine.stats.num_accepted == engine.stats.num_drafted > 28
    assert len(passes) < engine.stats.num_steps
    assert head.num_first == 1


def test_a_prompt_that_was_read_before_is_not_read_again() -> None:
    engine = make_engine()
    head = with_head(engine)
    ask(engine, range(40), 8, "before")
    num_pairs = head.num_pairs

    again = ask(engine, range(40), 8, "again")

    assert (again.num_cached, again.num_draft_missing, head.num_first) == (36, 0, 1)
    assert head.num_pairs - num_pairs < 20
    assert engine.stats.num_accepted == engine.stats.num_drafted


def test_a_prompt_that_goes_on_otherwise_misses_at_most_a_block() -> None:
    engine = make_engine()
    with_head(engine)
    ask(engine, range(40), 8, "before")

    other = ask(engine, [*range(24), *range(100, 120)], 8, "other")

    assert other.num_cached == 24
    assert 0 < other.num_draft_missing <= BLOCK_SIZE
    assert engine.stats.num_accepted == engine.stats.num_drafted


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
    monkeypatch.setattr(head_drafter, "MAX_READ", max_read)
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


def test_while_nothing_is_drafted_the_head_keeps_up() -> None:
    budget = Never(3)
    engine = make_engine()
    head = with_head(engine, budget=budget)
    request = make_request("r", range(11), max_tokens=260)
    engine.add(request)
    for _ in range(200):
        engine.step()
    num_read = head.num_pairs
    budget.is_on = True

    run(engine)

    assert num_read > 100
    assert head.num_first == 1
    assert engine.stats.num_accepted == engine.stats.num_drafted > 30


def test_while_drafting_rests_nothing_is_read_and_then_what_the_last_passes_gave() -> None:
    budget = Never(3)
    budget.is_paused = True
    engine = make_engine()
    head = with_head(engine, budget=budget)
    request, gone = make_request("r", range(90), max_tokens=260), make_request("gone", range(9))
    for each in (request, gone):
        engine.add(each)
    for _ in range(200):
        engine.step()
    num_read = head.num_pairs
    budget.is_on, budget.is_paused = True, False

    run(engine)

    assert num_read == 0
    assert request.output == echo_output(range(90), 260, VOCAB)
    assert engine.stats.num_accepted == engine.stats.num_drafted > 30
    assert request.num_draft_missing == 90 + 200 - 1 - MIN_READ
    assert gone.num_draft_missing == 0
    assert head.num_first == 1


@pytest.mark.parametrize("num_unseen", [1, 2, 3])
def test_drafts_from_before_a_rest_do_not_fill_the_gap_behind_it(num_unseen: int) -> None:
    budget = Never(3)
    budget.is_on = True
    engine = make_engine()
    head = with_head(engine, errs_every=2, budget=budget)
    request = make_request("r", range(11), max_tokens=150)
    engine.add(request)
    while engine.stats.num_accepted == engine.stats.num_drafted:
        engine.step()
    budget.is_on, budget.is_paused = False, True
    for _ in range(MIN_READ + num_unseen):
        engine.step()
    budget.is_on, budget.is_paused = True, False

    run(engine)

    assert num_unseen <= request.num_draft_missing <= num_unseen + 4
    assert head.num_first == 2
    assert engine.stats.num_accepted > 20


def test_after_a_rest_what_the_head_was_not_read_is_found_where_features_are_kept() -> None:
    budget = Never(3)
    budget.is_on = True
    engine = make_engine(features=FEATURES)
    head = with_head(engine, errs_every=2, budget=budget)
    before, late = make_request("r", range(90), max_tokens=300), make_request("l", range(100, 130))
    late.sampling = SamplingParams(temperature=0.0, max_tokens=200)
    engine.add(before)
    for _ in range(6):  # drafts that were wrong are in what it was shown last
        engine.step()
    budget.is_on, budget.is_paused, budget.is_pause_deep = False, True, True
    engine.add(late)
    num_read = head.num_pairs
    for _ in range(100):
        engine.step()
    num_read_at_rest = head.num_pairs - num_read
    budget.is_on, budget.is_paused, budget.is_pause_deep = True, False, False

    run(engine)

    assert num_read_at_rest == 0
    assert before.output == echo_output(range(90), 300, VOCAB)
    assert late.output == echo_output(range(100, 130), 200, VOCAB)
    assert (before.num_draft_missing, late.num_draft_missing, head.num_first) == (0, 0, 2)
    assert engine.stats.num_accepted > 60
    assert engine.speculation is not None
    metrics = engine.speculation.metrics()
    assert metrics["draft_missing_tokens_total"] == 0
    assert metrics["draft_recalled_tokens_total"] == 90 + 100 + 30 + 99  # and no token twice


def test_without_blocks_of_its_own_the_head_says_nothing() -> None:
    engine = make_engine()
    with_head(engine, num_blocks=4)

    request = ask(engine, range(11), 60)

    assert engine.stats.num_drafted < 30 < request.num_sampled


def head_of(num_blocks: int) -> HeadDrafter:
    """A head on its own."""
    engine = make_engine()
    with_head(engine, num_blocks=num_blocks)
    assert engine.speculation is not None
    assert isinstance(engine.speculation.reader, HeadDrafter)
    return engine.speculation.reader


def running(name: str, num_tokens: int, first: int = 0) -> Request:
    request = make_request(name, range(first, first + num_tokens))
    request.phase = Phase.RUNNING
    return request


def show(drafter: HiddenReader, request: Request, start: int, num_rows: int) -> None:
    hidden = torch.arange(num_rows).unsqueeze(1)
    drafter.read([Shown(request, start, num_rows)], hidden, is_resting=False)


def test_features_that_find_no_block_are_dropped_and_named_for_nobody() -> None:
    budget = Never(3)
    engine = make_engine()
    with_head(engine, num_blocks=20, budget=budget)
    assert engine.speculation is not None
    drafter = engine.speculation.reader
    assert isinstance(drafter, HeadDrafter)
    first, second = make_request("1", range(70)), make_request("2", range(100, 111))
    first.sampling = second.sampling = SamplingParams(temperature=0.0, max_tokens=300)
    engine.add(first)
    engine.add(second)
    for _ in range(200):
        engine.step()
        assert all(len(reading.rows) <= MIN_READ + 1 for reading in drafter._readings.values())

    engine.abort("1")
    budget.is_on = True
    run(engine)

    assert second.num_draft_missing > MIN_READ
    assert drafter.num_missing >= first.num_draft_missing + second.num_draft_missing
    assert engine.stats.num_accepted == engine.stats.num_drafted > 30
    assert not drafter._pool.num_cached(second.tokens[1:], head_drafter._salt(second))


def test_a_head_without_blocks_takes_those_of_who_was_preempted() -> None:
    drafter = head_of(num_blocks=25)
    preempted, other = running("1", 90), running("2", 90, first=200)
    show(drafter, preempted, 0, 90)
    preempted.phase = Phase.WAITING

    show(drafter, other, 0, 80)
    show(drafter, other, 80, 10)
    assert other.num_draft_missing == 79
    assert not drafter._pool.table(preempted.holder)

    (draft,) = drafter.propose([other], 3)
    assert len(draft.tokens) == 3


def test_a_prompt_that_the_head_is_never_shown_takes_none_of_its_blocks() -> None:
    drafter = head_of(num_blocks=4)
    request = running("r", 401)
    show(drafter, request, 400, 1)
    request.append(7)

    (draft,) = drafter.propose([request], 3)

    assert len(draft.tokens) == 3
    assert drafter._pool.num_in_use == 1


def test_a_head_reads_no_more_at_once_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    nums_read: list[int] = []
    read = EchoHead.__call__

    def watched(head: EchoHead, hidden: Tensor, *others: object) -> Tensor:
        nums_read.append(len(hidden))
        return read(head, hidden, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(EchoHead, "__call__", watched)
    monkeypatch.setattr(head_drafter, "MAX_READ", 40)
    engine = make_engine()
    head = with_head(engine)
    requests = [make_request(str(at), range(100 * at, 100 * at + 90)) for at in range(3)]
    for request in requests:
        engine.add(request)

    run(engine)

    assert max(nums_read) == 40
    assert head.num_first == len(requests)
    assert engine.stats.num_accepted == engine.stats.num_drafted > 0


def test_who_only_wants_an_embedding_is_not_read_by_heads() -> None:
    heads = MedusaHeads(1, VOCAB, num_heads=1, num_layers=0, has_own_heads=False)
    head, medusa = head_of(num_blocks=64), MedusaDrafter(heads, eos_token_ids=())
    request = Request("r", range(90), sampling=SamplingParams(), pooling=Pooling.MEAN)

    show(head, request, 0, 90)
    show(medusa, request, 0, 90)

    assert not head._readings
    assert not head._pool.num_in_use
    assert not medusa.propose([request], 1)[0].tokens


def test_what_a_head_read_of_outputs_that_are_not_finite_is_left_to_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine()
    with_head(engine)
    assert engine.speculation is not None
    drafter = engine.speculation.reader
    assert isinstance(drafter, HeadDrafter)
    logits = engine.runner.logits
    monkeypatch.setattr(engine.runner, "logits", lambda hidden: logits(hidden) * torch.nan)
    request = make_request("r", range(90))
    engine.add(request)

    (report,) = run(engine)

    assert report.outputs[0].error is not None
    assert not drafter._pool.num_cached(request.tokens[1:], head_drafter._salt(request))
    assert not any(plane.any() for plane in drafter._cache.planes)


def copy_kv(source: Engine, target: Engine, lease: Holder, prompt: Sequence[int]) -> None:
    """What was computed there, block by block, into the blocks of `lease`."""
    kept = Holder(HolderKind.LEASE, "kept")
    source.pool.hold_cached(kept, prompt, b"")
    for index in range(len(target.pool.table(lease))):
        for plane in range(target.pool.layout.num_planes):
            if index < len(source.pool.table(kept)):
                view = source.pool.view(kept, index, plane)
                target.pool.write(lease, index, plane, view)
