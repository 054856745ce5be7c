"""Who gives up its blocks, and who comes first: preemption, handoffs and priorities."""

from __future__ import annotations

from tests.engine.schedule.schedules import adopt, compute, make_request, make_scheduler, planned

from baton.core.kv_pool import Holder, HolderKind
from baton.engine.config import SchedulerConfig
from baton.engine.request.request import Phase
from baton.engine.schedule.drafted_chunks import ScheduledChunk
from baton.engine.schedule.scheduler import MAX_OVERTAKEN, Reclaim, Scheduler


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


def giving_up(scheduler: Scheduler, lease: Holder) -> Reclaim:
    def reclaim(tenant: str | None) -> bool:
        had_any = bool(scheduler.pool.table(lease))
        scheduler.pool.release(lease)
        return had_any

    return reclaim


def test_leases_are_reclaimed_before_a_request_is_preempted() -> None:
    lease = Holder(HolderKind.LEASE, "incoming")
    scheduler = make_scheduler(num_blocks=4)
    reclaim = giving_up(scheduler, lease)
    request = make_request("running", prompt_len=8)
    scheduler.add(request)
    compute(scheduler, scheduler.step())
    scheduler.pool.reserve(lease, range(8), b"")

    assert planned(scheduler.step(reclaim)) == {"running": 1}
    assert request.num_preemptions == 0
    assert not scheduler.pool.table(lease)


def test_a_lease_does_not_keep_the_only_request_waiting() -> None:
    lease = Holder(HolderKind.LEASE, "incoming")
    scheduler = make_scheduler(num_blocks=4)
    reclaim = giving_up(scheduler, lease)
    scheduler.pool.reserve(lease, range(8), b"")
    scheduler.add(make_request("large", prompt_len=16))

    assert planned(scheduler.step(reclaim)) == {"large": 16}


def test_a_refused_request_is_tried_again_once_it_is_alone() -> None:
    """The running request ends without a block coming free: its lease has them all."""
    lease = Holder(HolderKind.LEASE, "outgoing")
    scheduler = make_scheduler(num_blocks=4)
    reclaim = giving_up(scheduler, lease)
    running = make_request("running", prompt_len=7)
    scheduler.add(running)
    compute(scheduler, scheduler.step())
    scheduler.pool.share(running.holder, lease, 2)
    scheduler.add(make_request("large", prompt_len=16))
    assert planned(scheduler.step(reclaim)) == {"running": 1}

    scheduler.finish(running)

    assert planned(scheduler.step(reclaim)) == {"large": 16}


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
