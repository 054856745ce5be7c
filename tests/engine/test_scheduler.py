"""The scheduler as values: no model, no time, and blocks without memory behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.no_bytes import NoBytes

from baton.core.clock import ManualClock
from baton.core.kv_pool import Holder, HolderKind
from baton.core.messages import SamplingParams
from baton.engine.block_pool import BlockPool
from baton.engine.config import SchedulerConfig
from baton.engine.request import Phase, Request
from baton.engine.scheduler import MAX_OVERTAKEN, ScheduledChunk, Scheduler


def make_scheduler(  # noqa: PLR0913  # what tests vary
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    reclaim: Callable[[], bool] = lambda: False,
    config: SchedulerConfig | None = None,
    pinned_fraction: float = 0.25,
    kv_shares: Mapping[str, float] | None = None,
    kv_dtype: str = "float32",
) -> Scheduler:
    pool = BlockPool(
        NoBytes(num_blocks, block_size, kv_dtype),
        pinned_fraction=pinned_fraction,
        kv_shares=kv_shares,
        clock=ManualClock(),
    )
    return Scheduler(pool, config or SchedulerConfig(), reclaim=reclaim)


def make_request(
    name: str,
    *,
    prompt_len: int = 8,
    first_token: int | None = None,
    priority: int = 0,
    tenant: str = "",
) -> Request:
    """Prompts of different names have nothing in common unless `first_token` makes them equal."""
    start = crc32(name.encode()) % 2**20 if first_token is None else first_token
    prompt = [start * 1000 + index for index in range(prompt_len)]
    return Request(
        name,
        prompt,
        sampling=SamplingParams(max_tokens=100),
        salt=tenant.encode(),
        tenant=tenant,
        priority=priority,
    )


def compute(scheduler: Scheduler, chunks: Iterable[ScheduledChunk]) -> None:
    """What the engine does with chunks: compute them, then sample if nothing is pending."""
    for chunk in chunks:
        request = chunk.request
        request.num_computed += chunk.num_tokens
        scheduler.pool.commit(request.holder, request.tokens, request.num_computed, request.salt)
        if not request.num_pending:
            request.append(7)


def planned(chunks: Sequence[ScheduledChunk]) -> dict[str, int]:
    return {chunk.request.request_id: chunk.num_tokens for chunk in chunks}


def adopt(scheduler: Scheduler, request: Request) -> bool:
    """What the engine does with a finished handoff of all known tokens but the last, if any last.

    False if the blocks for it are not to be had.
    """
    lease = Holder(HolderKind.LEASE, request.request_id)
    num_cached = scheduler.pool.reserve(
        lease, request.tokens[:-1], request.salt, tenant=request.tenant
    )
    if num_cached is None:
        return False
    request.num_computed = scheduler.pool.layout.num_lasting(len(request.tokens) - 1)
    if request.num_computed:
        scheduler.pool.hand_over(lease, request.holder)
    else:
        scheduler.pool.release(lease)
    scheduler.add(request)
    return True


def pin(scheduler: Scheduler, name: str, *, prompt_len: int) -> None:
    """Run a prompt, and leave it behind as a cache point."""
    request = make_request(name, prompt_len=prompt_len)
    scheduler.add(request)
    compute(scheduler, scheduler.step())
    assert scheduler.pool.pin(request.holder, prompt_len, 300).num_blocks
    scheduler.finish(request)


def test_the_youngest_request_is_preempted_when_blocks_run_out() -> None:
    scheduler = make_scheduler(num_blocks=4, block_size=4)
    old, young = make_request("old", prompt_len=8), make_request("young", prompt_len=8)
    scheduler.add(old)
    scheduler.add(young)
    compute(scheduler, scheduler.step())

    chunks = scheduler.step()

    assert [chunk.request for chunk in chunks] == [old]
    assert young.phase is Phase.WAITING
    assert young.num_computed == 0
    assert young.num_preemptions == scheduler.num_preempted == 1
    assert scheduler.pool.num_available == 1


def test_a_preempted_request_comes_back_first_and_finds_what_is_left_of_its_blocks() -> None:
    scheduler = make_scheduler(num_blocks=4, block_size=4)
    old, young, third = (make_request(name) for name in ("old", "young", "third"))
    for request in (old, young, third):
        scheduler.add(request)
    compute(scheduler, scheduler.step())
    compute(scheduler, scheduler.step())

    scheduler.finish(old)
    chunks = scheduler.step()

    assert chunks[0] == ScheduledChunk(young, 5)  # 4 of its 9 tokens were still in the cache
    assert young.num_cached == 0  # which says nothing about other prompts
    assert third.phase is Phase.WAITING


def test_a_long_prompt_is_computed_in_chunks_of_the_budget() -> None:
    scheduler = make_scheduler(config=SchedulerConfig(max_batch_tokens=7))
    scheduler.add(make_request("long", prompt_len=17))

    lengths = []
    for _ in range(4):
        chunks = scheduler.step()
        lengths.append(planned(chunks)["long"])
        compute(scheduler, chunks)

    assert lengths == [7, 7, 3, 1]


def test_one_request_runs_no_more_than_a_prefill_chunk_so_that_others_run_as_well() -> None:
    scheduler = make_scheduler(config=SchedulerConfig(max_batch_tokens=12, prefill_chunk=8))
    scheduler.add(make_request("long", prompt_len=20))
    scheduler.add(make_request("short", prompt_len=3))

    assert planned(scheduler.step()) == {"long": 8, "short": 3}


def test_running_requests_come_before_waiting_ones() -> None:
    scheduler = make_scheduler(config=SchedulerConfig(max_batch_tokens=8))
    for name in ("a", "b"):
        scheduler.add(make_request(name, prompt_len=4))
    compute(scheduler, scheduler.step())
    scheduler.add(make_request("new", prompt_len=20))

    assert planned(scheduler.step()) == {"a": 1, "b": 1, "new": 6}


def test_a_long_prompt_that_comes_back_stalls_nobody_who_decodes_or_is_handed_off() -> None:
    config = SchedulerConfig(max_batch_tokens=8)
    scheduler = make_scheduler(num_blocks=20, config=config)
    scheduler.add(make_request("first", prompt_len=3))
    compute(scheduler, scheduler.step())
    long = make_request("long", prompt_len=60)
    scheduler.add(long)
    while not long.num_preemptions:
        compute(scheduler, scheduler.step())
    scheduler.finish(next(iter(scheduler.running)))
    scheduler.pool.reset_cache()  # nothing of it is found again
    adopt(scheduler, make_request("young", prompt_len=2))
    compute(scheduler, scheduler.step())
    adopt(scheduler, make_request("younger", prompt_len=2))

    passes = []
    for _ in range(3):
        chunks = scheduler.step()
        passes.append(planned(chunks))
        compute(scheduler, chunks)

    assert passes == [{"long": 6, "young": 1, "younger": 1}] * 3
    assert [request.request_id for request in scheduler.running] == ["long", "young", "younger"]


def test_no_older_prompt_takes_the_tokens_that_finish_the_open_block_of_a_handoff() -> None:
    config = SchedulerConfig(max_batch_tokens=8)
    scheduler = make_scheduler(kv_dtype="int4", block_size=4, config=config)
    scheduler.add(make_request("long", prompt_len=60))
    compute(scheduler, scheduler.step())
    adopt(scheduler, make_request("handed off", prompt_len=8))  # 4 of its tokens were sealed

    passes = []
    for _ in range(2):
        chunks = scheduler.step()
        passes.append(planned(chunks))
        compute(scheduler, chunks)

    assert passes == [{"long": 4, "handed off": 4}, {"long": 7, "handed off": 1}]


@pytest.mark.parametrize("is_running", [False, True])
def test_handoffs_that_finish_their_open_blocks_leave_each_other_and_a_prompt_a_token(
    is_running: bool,
) -> None:
    config = SchedulerConfig(max_batch_tokens=6)
    scheduler = make_scheduler(kv_dtype="int4", block_size=4, config=config)
    scheduler.add(make_request("long", prompt_len=60))
    compute(scheduler, scheduler.step())
    for name in "abcd":
        adopt(scheduler, make_request(name, prompt_len=8))
    if is_running:
        scheduler.step()  # as planned here, but nothing was computed

    assert planned(scheduler.step()) == {"long": 1, "a": 2, "b": 1, "c": 1, "d": 1}


def test_a_lineup_has_blocks_for_all_though_a_tenant_took_those_of_one_that_had_its_chunk() -> None:
    config = SchedulerConfig(max_batch_tokens=3)
    scheduler = make_scheduler(num_blocks=4, config=config, kv_shares={"a": 0.75})
    scheduler.pool.reserve(Holder(HolderKind.LEASE, "other"), range(1), b"", tenant="c")
    kept, last = (make_request(name, prompt_len=3, tenant="a") for name in ("kept", "last"))
    for request in (kept, last):
        adopt(scheduler, request)
    compute(scheduler, scheduler.step())
    scheduler.add(urgent := make_request("urgent", prompt_len=3, tenant="b", priority=-1))
    compute(scheduler, scheduler.step())
    kept.scheduled_at = last.scheduled_at = 0.0

    chunks = scheduler.step()

    assert urgent.num_preemptions == 1
    assert scheduler.lineup is not None
    assert scheduler.lineup.requests == tuple(chunk.request for chunk in chunks) == (kept,)
    assert len(scheduler.pool.table(kept.holder)) * 4 > kept.num_computed


def test_no_more_than_max_running_requests_run_at_once() -> None:
    scheduler = make_scheduler(config=SchedulerConfig(max_running=2))
    requests = [make_request(str(index)) for index in range(3)]
    for request in requests:
        scheduler.add(request)

    assert planned(scheduler.step()).keys() == {"0", "1"}
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 1)
    scheduler.finish(requests[0])
    assert "2" in planned(scheduler.step())


def test_a_cached_prefix_is_not_run_again() -> None:
    scheduler = make_scheduler()
    first = make_request("first", prompt_len=10, first_token=1)
    scheduler.add(first)
    compute(scheduler, scheduler.step())
    scheduler.finish(first)
    again = make_request("again", prompt_len=10, first_token=1)
    scheduler.add(again)

    assert planned(scheduler.step()) == {"again": 2}
    assert again.num_cached == 8


def test_a_request_too_large_for_now_holds_up_those_behind_it() -> None:
    scheduler = make_scheduler(num_blocks=4)
    running, large, small = (
        make_request("running", prompt_len=6),
        make_request("large", prompt_len=12),
        make_request("small", prompt_len=1),
    )
    scheduler.add(running)
    compute(scheduler, scheduler.step())
    scheduler.add(large)
    scheduler.add(small)

    assert planned(scheduler.step()) == {"running": 1}
    scheduler.finish(running)
    assert planned(scheduler.step()) == {"large": 12, "small": 1}


def test_an_adopted_request_runs_at_once_on_the_blocks_it_brought() -> None:
    scheduler = make_scheduler(num_blocks=4)
    scheduler.add(make_request("too large for now", prompt_len=13))
    adopted = make_request("adopted", prompt_len=6)
    adopt(scheduler, adopted)

    assert planned(scheduler.step()) == {"adopted": 1}
    assert adopted.num_computed == 5


def test_adopted_requests_that_hold_the_whole_pool_do_not_wait_for_each_other_forever() -> None:
    scheduler = make_scheduler(num_blocks=4)
    first, second = make_request("first", prompt_len=9), make_request("second", prompt_len=9)
    adopt(scheduler, first)
    adopt(scheduler, second)

    assert planned(scheduler.step()) == {"first": 1}
    assert second.num_preemptions == 1
    assert second.num_computed == 0


def test_leases_are_reclaimed_before_a_request_is_preempted() -> None:
    lease = Holder(HolderKind.LEASE, "incoming")

    def reclaim() -> bool:
        had_any = bool(scheduler.pool.table(lease))
        scheduler.pool.release(lease)
        return had_any

    scheduler = make_scheduler(num_blocks=4, reclaim=reclaim)
    request = make_request("running", prompt_len=8)
    scheduler.add(request)
    compute(scheduler, scheduler.step())
    scheduler.pool.reserve(lease, range(8), b"")

    assert planned(scheduler.step()) == {"running": 1}
    assert request.num_preemptions == 0
    assert not scheduler.pool.table(lease)


def test_a_lease_does_not_keep_the_only_request_waiting() -> None:
    lease = Holder(HolderKind.LEASE, "incoming")

    def reclaim() -> bool:
        had_any = bool(scheduler.pool.table(lease))
        scheduler.pool.release(lease)
        return had_any

    scheduler = make_scheduler(num_blocks=4, reclaim=reclaim)
    scheduler.pool.reserve(lease, range(8), b"")
    scheduler.add(make_request("large", prompt_len=16))

    assert planned(scheduler.step()) == {"large": 16}


def test_a_refused_request_is_tried_again_once_it_is_alone() -> None:
    """The running request ends without a block coming free: its lease has them all."""
    lease = Holder(HolderKind.LEASE, "outgoing")

    def reclaim() -> bool:
        had_any = bool(scheduler.pool.table(lease))
        scheduler.pool.release(lease)
        return had_any

    scheduler = make_scheduler(num_blocks=4, reclaim=reclaim)
    running = make_request("running", prompt_len=7)
    scheduler.add(running)
    compute(scheduler, scheduler.step())
    scheduler.pool.share(running.holder, lease, 2)
    scheduler.add(make_request("large", prompt_len=16))
    assert planned(scheduler.step()) == {"running": 1}

    scheduler.finish(running)

    assert planned(scheduler.step()) == {"large": 16}


def test_a_preempted_request_keeps_its_rank_over_requests_adopted_meanwhile() -> None:
    scheduler = make_scheduler(num_blocks=6)
    first, second = make_request("first", prompt_len=12), make_request("second", prompt_len=12)
    scheduler.add(first)
    scheduler.add(second)
    compute(scheduler, scheduler.step())
    compute(scheduler, scheduler.step())
    assert second.num_preemptions == 1
    scheduler.finish(first)
    third = make_request("third", prompt_len=6)
    adopt(scheduler, third)

    assert planned(scheduler.step()).keys() == {"third", "second"}
    while not third.num_preemptions:
        compute(scheduler, scheduler.step())
    assert second.num_preemptions == 1


def test_of_equal_priority_a_handoff_that_waits_makes_room_before_one_that_runs() -> None:
    scheduler = make_scheduler(num_blocks=4, config=SchedulerConfig(max_running=1))
    running, adopted = make_request("running"), make_request("adopted", prompt_len=9)
    scheduler.add(running)
    compute(scheduler, scheduler.step())
    assert adopt(scheduler, adopted)

    assert planned(scheduler.step()) == {"running": 1}
    assert (running.num_preemptions, adopted.num_preemptions) == (0, 1)


def test_the_head_of_the_queue_starves_when_too_many_adopted_requests_pass_it() -> None:
    scheduler = make_scheduler(num_blocks=4, block_size=4)
    running = make_request("running", prompt_len=4)
    scheduler.add(running)
    compute(scheduler, scheduler.step())
    scheduler.add(make_request("large", prompt_len=12))

    for number in range(MAX_OVERTAKEN):
        assert not scheduler.is_starving
        adopted = make_request(f"adopted {number}", prompt_len=4)
        adopt(scheduler, adopted)
        assert "large" not in planned(scheduler.step())
        scheduler.finish(adopted)
    assert scheduler.is_starving

    scheduler.finish(running)
    chunks = scheduler.step()
    assert planned(chunks) == {"large": 12}
    assert not scheduler.is_starving

    while scheduler.num_running:  # until it is preempted, for want of a fifth block
        compute(scheduler, chunks)
        chunks = scheduler.step()
    assert not scheduler.is_starving


def test_a_request_alone_that_finds_no_block_waits_for_one() -> None:
    scheduler = make_scheduler(num_blocks=4)
    lease = Holder(HolderKind.LEASE, "incoming")
    scheduler.add(make_request("alone", prompt_len=8))
    compute(scheduler, scheduler.step())
    scheduler.pool.reserve(lease, range(8), b"")

    assert scheduler.step() == scheduler.step() == []
    scheduler.pool.release(lease)
    assert "alone" in planned(scheduler.step())


def test_the_smaller_priority_is_admitted_first_and_first_come_first_served_within_one() -> None:
    scheduler = make_scheduler(config=SchedulerConfig(max_running=1))
    for name, priority in (("b", 1), ("c", 1), ("a", 0), ("d", 2), ("urgent", -1)):
        scheduler.add(make_request(name, priority=priority))

    order = []
    while list(scheduler):
        [chunk] = scheduler.step()
        order.append(chunk.request.request_id)
        scheduler.finish(chunk.request)

    assert order == ["urgent", "a", "b", "c", "d"]


def test_the_least_priority_is_preempted_though_it_came_first() -> None:
    scheduler = make_scheduler(num_blocks=6)
    background, first, second = (
        make_request("background", priority=5),
        make_request("first"),
        make_request("second"),
    )
    for request in (background, first, second):
        scheduler.add(request)
    compute(scheduler, scheduler.step())

    assert planned(scheduler.step()) == {"first": 1, "second": 1}
    assert background.num_preemptions == 1


def test_the_budget_goes_to_the_smaller_priority_first() -> None:
    scheduler = make_scheduler(config=SchedulerConfig(max_batch_tokens=8))
    scheduler.add(make_request("background", prompt_len=20, priority=5))
    compute(scheduler, scheduler.step())
    scheduler.add(make_request("urgent", prompt_len=9, priority=0))

    assert planned(scheduler.step()) == {"background": 8}  # what runs comes before what waits
    scheduler = make_scheduler(config=SchedulerConfig(max_batch_tokens=8, prefill_chunk=5))
    scheduler.add(make_request("background", prompt_len=20, priority=5))
    scheduler.add(make_request("urgent", prompt_len=9, priority=0))
    compute(scheduler, scheduler.step())
    assert planned(scheduler.step()) == {"urgent": 4, "background": 4}


def test_a_handoff_comes_before_whoever_waits_with_the_same_priority() -> None:
    scheduler = make_scheduler(config=SchedulerConfig(max_running=1))
    scheduler.add(make_request("waiting"))
    adopt(scheduler, make_request("adopted"))

    assert planned(scheduler.step()) == {"adopted": 1}


def test_a_handoff_of_a_lesser_priority_lets_whoever_waits_go_first() -> None:
    scheduler = make_scheduler(config=SchedulerConfig(max_running=1))
    adopt(scheduler, make_request("background", priority=5))
    scheduler.add(make_request("urgent", priority=0))

    assert planned(scheduler.step()) == {"urgent": 8}


def test_a_handoff_of_a_lesser_priority_runs_while_whoever_waits_does_not_fit() -> None:
    scheduler = make_scheduler(num_blocks=4)
    adopt(scheduler, make_request("background", prompt_len=6, priority=5))
    scheduler.add(make_request("urgent", prompt_len=12, priority=0))

    assert planned(scheduler.step()) == {"background": 1}


def test_those_that_rightly_come_first_do_not_count_as_overtaking() -> None:
    scheduler = make_scheduler(num_blocks=4)
    scheduler.add(make_request("running", prompt_len=4))
    compute(scheduler, scheduler.step())
    scheduler.add(make_request("background", prompt_len=12, priority=5))

    for number in range(MAX_OVERTAKEN):
        adopted = make_request(f"adopted {number}", prompt_len=4)
        adopt(scheduler, adopted)
        scheduler.step()
        scheduler.finish(adopted)

    assert not scheduler.is_starving


def test_a_prompt_read_token_by_token_takes_nothing_from_the_cache() -> None:
    scheduler = make_scheduler()
    first = make_request("first", prompt_len=10, first_token=1)
    scheduler.add(first)
    compute(scheduler, scheduler.step())
    scheduler.finish(first)
    sampling = SamplingParams(max_tokens=100, num_prompt_logprobs=0)
    scheduler.add(Request("again", first.prompt, sampling=sampling))

    assert planned(scheduler.step()) == {"again": 10}


@pytest.mark.parametrize("is_running", [False, True])
def test_a_finished_request_leaves_its_queue_and_frees_its_blocks(is_running: bool) -> None:
    scheduler = make_scheduler()
    request = make_request("gone")
    scheduler.add(request)
    if is_running:
        compute(scheduler, scheduler.step())

    scheduler.finish(request)

    assert request.phase is Phase.FINISHED
    assert not list(scheduler)
    assert not scheduler.step()
    assert scheduler.pool.num_in_use == 0


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.integers(1, 20), st.integers(0, 2), st.booleans()), min_size=1, max_size=12
    ),
    num_blocks=st.integers(8, 16),
    max_batch_tokens=st.integers(1, 24),
    max_running=st.integers(1, 6),
    num_outputs=st.integers(1, 12),
    kv_dtype=st.sampled_from(["float32", "int4"]),
)
def test_every_request_is_finished_in_the_end_within_every_limit(
    requests: list[tuple[int, int, bool]],
    num_blocks: int,
    max_batch_tokens: int,
    max_running: int,
    num_outputs: int,
    kv_dtype: str,
) -> None:
    """Each has a length and a priority, and comes by handoff or not, one with every step."""
    config = SchedulerConfig(max_batch_tokens=max_batch_tokens, max_running=max_running)
    scheduler = make_scheduler(num_blocks=num_blocks, config=config, kv_dtype=kv_dtype)
    to_come = [
        (make_request(str(index), prompt_len=prompt_len, priority=priority), is_handed_off)
        for index, (prompt_len, priority, is_handed_off) in enumerate(requests)
    ]

    for _ in range(10_000):
        if to_come:
            arrive(scheduler, *to_come.pop(0))
        before = set(scheduler.running)
        chunks = scheduler.step()
        assert sum(chunk.num_tokens for chunk in chunks) <= max_batch_tokens
        assert_nobody_stalls(scheduler, chunks, before)
        assert len({chunk.request for chunk in chunks}) == len(chunks) <= max_running
        for chunk in chunks:
            end = chunk.request.num_computed + chunk.num_tokens
            assert len(scheduler.pool.table(chunk.request.holder)) * 4 >= end
        assert_priorities_are_kept(scheduler, before)
        compute(scheduler, chunks)
        for request in list(scheduler):
            if request.num_sampled >= num_outputs:
                scheduler.finish(request)
        if not to_come and not list(scheduler):
            break

    assert not list(scheduler)
    assert scheduler.pool.num_in_use == 0


def arrive(scheduler: Scheduler, request: Request, is_handed_off: bool) -> None:
    """By handoff if it is one and there are blocks for it."""
    num_free = scheduler.pool.num_available
    num_needed = scheduler.pool.layout.num_blocks_for(len(request.prompt))
    if is_handed_off and len(request.prompt) > 1 and num_free >= num_needed:
        adopt(scheduler, request)
    else:
        scheduler.add(request)


def assert_nobody_stalls(
    scheduler: Scheduler, chunks: Sequence[ScheduledChunk], before: set[Request]
) -> None:
    """Who decodes, or will when a block is full, gets a token in every pass; and so does the first
    prompt that runs."""
    has_chunk = {chunk.request for chunk in chunks}
    still = [request for request in scheduler.running if request in before]
    layout = scheduler.pool.layout
    most_to_decode = layout.block_size if layout.is_sealed else 1
    prompts = [request for request in still if request.num_pending > most_to_decode]
    assert has_chunk.issuperset(r for r in still if r.num_pending <= most_to_decode)
    assert has_chunk.issuperset(prompts[:1])


def assert_priorities_are_kept(scheduler: Scheduler, before: set[Request]) -> None:
    """`before` is what ran before the step."""
    running = list(scheduler.running)
    assert [r.priority for r in running] == sorted(r.priority for r in running)
    still = [request.priority for request in running if request in before]
    gone = [r.priority for r in before if r.phase is Phase.WAITING]
    assert not gone or max(still, default=0) <= min(gone)  # nobody paid for a lesser one


def test_a_tenant_that_floods_is_held_to_its_share_while_others_are_served() -> None:
    scheduler = make_scheduler(num_blocks=12, kv_shares={"flood": 0.5})
    flood = [make_request(f"flood {n}", prompt_len=7, tenant="flood") for n in range(50)]
    for request in flood:
        scheduler.add(request)
    compute(scheduler, scheduler.step())
    other = make_request("other", prompt_len=15, tenant="other")
    scheduler.add(other)

    chunks = scheduler.step()

    assert other.phase is Phase.RUNNING
    assert [r.phase for r in flood].count(Phase.RUNNING) == 3
    assert planned(chunks)["other"] == 15
    assert not scheduler.is_starving


def test_a_tenant_at_its_limit_preempts_its_own_and_nobody_elses() -> None:
    scheduler = make_scheduler(num_blocks=12, kv_shares={"a": 0.5})
    old, young = (make_request(name, prompt_len=11, tenant="a") for name in ("old", "young"))
    other = make_request("other", prompt_len=3, tenant="b")
    for request in (old, young, other):
        scheduler.add(request)
    for _ in range(3):
        compute(scheduler, scheduler.step())

    assert young.phase is Phase.WAITING
    assert [r.phase for r in (old, other)] == [Phase.RUNNING] * 2
    assert other.num_preemptions == old.num_preemptions == 0


def test_whoever_has_a_share_is_served_from_it_however_full_the_pool_is_of_others() -> None:
    scheduler = make_scheduler(num_blocks=12, kv_shares={"a": 0.25})
    for n in range(3):
        request = make_request(f"cached {n}", prompt_len=4, tenant="a")
        scheduler.add(request)
        compute(scheduler, scheduler.step())
        scheduler.finish(request)
    for n in range(20):
        scheduler.add(make_request(f"flood {n}", prompt_len=10))
    compute(scheduler, scheduler.step())
    mine = make_request("mine", prompt_len=11, tenant="a")
    scheduler.add(mine)

    scheduler.step()

    assert mine.phase is Phase.RUNNING
    assert scheduler.num_preempted == 0


def test_growth_never_preempts_whoever_stays_within_its_share() -> None:
    scheduler = make_scheduler(num_blocks=8, kv_shares={"a": 0.5})
    kept = make_request("kept", prompt_len=9, tenant="a", priority=1)
    large = make_request("large", prompt_len=13)
    for request in (large, kept):
        scheduler.add(request)

    for _ in range(6):
        compute(scheduler, scheduler.step())

    assert kept.num_preemptions == 0
    assert large.num_preemptions > 0


def test_adopted_requests_of_a_tenant_at_its_limit_hold_up_nobody_else() -> None:
    scheduler = make_scheduler(num_blocks=16, kv_shares={"a": 0.5})
    scheduler.add(make_request("running", prompt_len=5, tenant="a"))
    compute(scheduler, scheduler.step())
    for name in ("one", "two"):
        adopt(scheduler, make_request(name, prompt_len=13, tenant="a"))
    other, adopted = make_request("other", tenant="b"), make_request("adopted", tenant="c")
    scheduler.add(other)
    adopt(scheduler, adopted)

    chunks = scheduler.step()

    assert planned(chunks).keys() == {"running", "other", "adopted"}
    assert not scheduler.is_starving


def test_whoever_waited_for_its_tenant_and_now_waits_for_the_pool_holds_up_those_behind() -> None:
    scheduler = make_scheduler(num_blocks=8, kv_shares={"a": 0.5})
    scheduler.add(make_request("running", prompt_len=5, tenant="a"))
    compute(scheduler, scheduler.step())
    scheduler.add(make_request("large", prompt_len=12, tenant="a"))
    assert "large" not in planned(scheduler.step())
    lease = Holder(HolderKind.LEASE, "incoming")
    assert scheduler.pool.reserve(lease, range(16), b"", tenant="b") is not None
    brief = make_request("brief", prompt_len=3, tenant="c")
    scheduler.add(brief)
    compute(scheduler, scheduler.step())
    scheduler.finish(brief)

    scheduler.add(make_request("small", prompt_len=3, tenant="c"))

    assert planned(scheduler.step()).keys() == {"running"}


def test_a_running_request_gets_the_blocks_of_pins_before_anybody_is_preempted() -> None:
    scheduler = make_scheduler(num_blocks=6, pinned_fraction=0.5)
    pin(scheduler, "pinned", prompt_len=8)
    old, young = make_request("old", prompt_len=8), make_request("young", prompt_len=7)
    for request in (old, young):
        scheduler.add(request)
    compute(scheduler, scheduler.step())

    chunks = scheduler.step()

    assert planned(chunks) == {"old": 1, "young": 1}
    assert scheduler.num_preempted == 0
    assert scheduler.pool.supply.counters.num_given_way == 1


def test_who_waits_leaves_pins_alone_unless_nothing_runs() -> None:
    scheduler = make_scheduler(num_blocks=6, pinned_fraction=0.5)
    pin(scheduler, "pinned", prompt_len=12)
    running, large = make_request("running", prompt_len=3), make_request("large", prompt_len=20)
    scheduler.add(running)
    compute(scheduler, scheduler.step())
    scheduler.add(large)
    compute(scheduler, scheduler.step())

    assert scheduler.num_waiting == 1
    assert len(scheduler.pool.pins) == 1
    scheduler.finish(running)
    scheduler.step()
    assert scheduler.num_waiting == 0
    assert len(scheduler.pool.pins) == 0


ARRIVALS = st.lists(
    st.tuples(
        st.integers(1, 30), st.sampled_from(["a", "b", "c"]), st.integers(0, 9), st.booleans()
    ),
    max_size=12,
)
"""Prompt length, tenant, the step before which it comes, and whether it was handed off."""


@settings(max_examples=200, deadline=None)
@given(
    shares=st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from([0.2, 0.3, 0.4])),
    arrivals=ARRIVALS,
)
def test_with_any_shares_every_request_that_fits_its_own_is_answered(
    shares: dict[str, float], arrivals: list[tuple[int, str, int, bool]]
) -> None:
    scheduler = make_scheduler(num_blocks=10, pinned_fraction=0.5, kv_shares=shares)
    accounts = scheduler.pool.accounts
    unfinished = 0

    for step in range(300):
        for number, (length, tenant, arrives, is_adopted) in enumerate(arrivals):
            if arrives == step and length < accounts.max_held(tenant) * 4:
                request = make_request(str(number), prompt_len=length, tenant=tenant)
                unfinished += 1
                if not (is_adopted and length > 1 and adopt(scheduler, request)):
                    scheduler.add(request)
        for chunk in scheduler.step():
            compute(scheduler, [chunk])
            request = chunk.request
            is_full = len(request.tokens) >= accounts.max_held(request.tenant) * 4
            if len(request.output) >= 6 or is_full:
                scheduler.pool.pin(request.holder, len(request.prompt), 300)
                scheduler.finish(request)
                unfinished -= 1
        for tenant, num_held in accounts.num_held_by_tenant.items():
            assert num_held <= accounts.max_held(tenant)

    assert not unfinished
