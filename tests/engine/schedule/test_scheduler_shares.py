"""What tenants may hold, and pins that give way, as the scheduler keeps to it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.schedule.schedules import (
    adopt,
    compute,
    make_request,
    make_scheduler,
    pin,
    planned,
)

from baton.core.kv_pool import Holder, HolderKind
from baton.engine.config import SchedulerConfig
from baton.engine.request.request import Phase


def test_a_batch_has_blocks_for_all_though_a_tenant_took_those_of_one_that_had_its_chunk() -> None:
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
    assert scheduler.persistent_batch is not None
    assert (
        scheduler.persistent_batch.requests == tuple(chunk.request for chunk in chunks) == (kept,)
    )
    assert len(scheduler.pool.table(kept.holder)) * 4 > kept.num_computed


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
    assert scheduler.pool.supply.counters.num_evicted == 1


def test_who_waits_leaves_pins_alone_unless_nothing_runs() -> None:
    scheduler = make_scheduler(num_blocks=6, pinned_fraction=0.5)
    pin(scheduler, "pinned", prompt_len=12)
    running, large = make_request("running", prompt_len=3), make_request("large", prompt_len=20)
    scheduler.add(running)
    compute(scheduler, scheduler.step())
    scheduler.add(large)
    compute(scheduler, scheduler.step())

    assert scheduler.num_waiting == 1
    assert len(scheduler.pool.prefixes.pins) == 1
    scheduler.finish(running)
    scheduler.step()
    assert scheduler.num_waiting == 0
    assert len(scheduler.pool.prefixes.pins) == 0


def test_who_waits_leaves_pins_alone_while_computed_prompts_hold_blocks_it_may_have() -> None:
    scheduler = make_scheduler(num_blocks=10, pinned_fraction=0.5, kv_shares={"a": 0.3})
    pin(scheduler, "pinned", prompt_len=12)
    lease = Holder(HolderKind.LEASE, "computed")
    assert scheduler.pool.reserve(lease, range(12), b"") is not None
    scheduler.add(make_request("large", prompt_len=12))

    scheduler.step(held_tenants=lambda: {""})
    assert scheduler.num_waiting == 1
    assert len(scheduler.pool.prefixes.pins) == 1

    scheduler.step(held_tenants=lambda: {"a"})  # what is held for `a` alone is no use to others
    assert scheduler.num_waiting == 0
    assert len(scheduler.pool.prefixes.pins) == 0


ARRIVALS = st.lists(
    st.tuples(
        st.integers(1, 30), st.sampled_from(["a", "b", "c"]), st.integers(0, 9), st.booleans()
    ),
    max_size=12,
)


@settings(max_examples=100, deadline=None)
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


def test_a_tenant_at_its_limit_gets_its_own_leases_back_and_nobody_elses() -> None:
    scheduler = make_scheduler(num_blocks=16, kv_shares={"a": 0.5})
    leases = {tenant: Holder(HolderKind.LEASE, tenant) for tenant in ("b", "a")}
    for tenant, lease in leases.items():
        scheduler.pool.reserve(lease, range(16), tenant.encode(), tenant=tenant)

    def reclaim(tenant: str | None) -> bool:
        lease = leases.pop(tenant or "b", None)
        if lease is not None:
            scheduler.pool.release(lease)
        return lease is not None

    scheduler.add(make_request("another's", tenant="b", prompt_len=3))
    compute(scheduler, scheduler.step(reclaim))
    scheduler.add(make_request("its own", tenant="a", prompt_len=32))

    assert planned(scheduler.step(reclaim)) == {"another's": 1, "its own": 32}
    assert leases.keys() == {"b"}
