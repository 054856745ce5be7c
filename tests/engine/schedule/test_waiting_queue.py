"""Who waits, in which order, and who is the first of each tenant."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from baton.core.sampling import SamplingParams
from baton.engine.request.request import Request
from baton.engine.schedule.waiting_queue import WaitingQueue, rank_waiting

people = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.booleans()), max_size=12)


def make_request(arrival: int, tenant: str, priority: int, was_preempted: bool) -> Request:
    sampling = SamplingParams()
    request = Request(str(arrival), [1], sampling=sampling, tenant=tenant, priority=priority)
    request.arrival, request.num_preemptions = arrival, int(was_preempted)
    return request


@given(people, st.sets(st.integers(0, 11)))
def test_the_line_is_that_of_a_sorted_list(
    who: list[tuple[str, int, bool]], gone: set[int]
) -> None:
    everybody = [make_request(i, *each) for i, each in enumerate(who)]
    line = WaitingQueue()
    for request in everybody:
        line.add(request)
    for request in everybody:
        if request.arrival in gone:
            line.discard(request)
            line.discard(request)

    left = sorted((r for r in everybody if r.arrival not in gone), key=rank_waiting)
    by_tenant = {tenant: [r for r in left if r.tenant == tenant] for tenant in "abc"}
    assert len(line) == len(left)
    assert set(line) == set(left)
    assert set(line.tenants) == {tenant for tenant, theirs in by_tenant.items() if theirs}
    assert line.heads() == [r for r in left if r is by_tenant[r.tenant][0]]
    for tenant, theirs in by_tenant.items():
        assert line.first_of(tenant) is (theirs[0] if theirs else None)
    of_two = [r for r in left if r.tenant in "ab"]
    assert line.last_of(["a", "b"]) is (of_two[-1] if of_two else None)
