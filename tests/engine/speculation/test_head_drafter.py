"""Drafting by hidden states: what the head is shown, what it keeps, and what it leaves."""

from __future__ import annotations

import pytest
import torch
from tests.echo_engines import BLOCK_SIZE, VOCAB, make_engine, make_request, run
from tests.echo_head import EchoHead
from tests.engine.speculation.headed_engines import ask, head_of, show, with_head
from torch import Tensor

from baton.core.messages import Pooling
from baton.core.sampling import SamplingParams
from baton.engine.config import SchedulerConfig
from baton.engine.models.heads.medusa import MedusaHeads
from baton.engine.passes.echo import echo_output
from baton.engine.request.request import Request
from baton.engine.speculation import head_passes
from baton.engine.speculation.head_drafter import HeadDrafter
from baton.engine.speculation.head_reading import pair_salt
from baton.engine.speculation.medusa_drafter import MedusaDrafter


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


def test_a_head_reads_no_more_at_once_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    nums_read: list[int] = []
    read = EchoHead.__call__

    def watched(head: EchoHead, hidden: Tensor, *others: object) -> Tensor:
        nums_read.append(len(hidden))
        return read(head, hidden, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(EchoHead, "__call__", watched)
    monkeypatch.setattr(head_passes, "MAX_READ", 40)
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
    assert not drafter._pool.num_cached(request.tokens[1:], pair_salt(request))
    assert not any(plane.any() for plane in drafter._passes._cache.planes)
