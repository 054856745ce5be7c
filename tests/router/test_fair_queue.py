"""Who goes next of several tenants, while they all wait."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from baton.router.fairness.fair_queue import FairQueue


def served(queue: FairQueue[int], num: int, *, refill: bool = True) -> Counter[str]:
    """Tokens by tenant of the next `num`; who is served comes again."""
    tokens: Counter[str] = Counter()
    for _ in range(num):
        entry = queue.first()
        assert entry is not None
        queue.serve(entry)
        queue.charge(entry.tenant, entry.item)
        tokens[entry.tenant] += entry.item
        if refill:
            queue.add(entry.item, tenant=entry.tenant, priority=entry.steps, now=0.0)
    return tokens


def waiting(weights: dict[str, float], *, tokens: dict[str, int]) -> FairQueue[int]:
    queue: FairQueue[int] = FairQueue(weights)
    for tenant, num in tokens.items():
        for _ in range(3):
            queue.add(num, tenant=tenant, now=0.0)
    return queue


def test_twice_the_weight_is_twice_the_tokens_whatever_a_request_has() -> None:
    queue = waiting({"double": 2.0}, tokens={"double": 10, "long": 700, "short": 30})

    tokens = served(queue, 5_000)

    assert abs(tokens["double"] - 2 * tokens["short"]) < 1_500
    assert abs(tokens["long"] - tokens["short"]) < 1_500


def test_who_asks_for_one_at_a_time_gets_its_share_as_well() -> None:
    queue = waiting({"double": 2.0}, tokens={"in line": 100})
    for tenant, num in (("one by one", 10), ("double", 100)):
        queue.add(num, tenant=tenant, now=0.0)

    tokens = served(queue, 5_000)

    assert abs(tokens["one by one"] - tokens["in line"]) <= 400
    assert abs(tokens["double"] - 2 * tokens["in line"]) <= 400


def test_who_was_idle_has_saved_nothing_up() -> None:
    queue = waiting({}, tokens={"busy": 10})
    served(queue, 1_000)
    for _ in range(3):
        queue.add(10, tenant="idle until now", now=0.0)

    assert served(queue, 20)["busy"] >= 90


def test_what_nobody_else_wanted_is_not_held_against_who_used_it() -> None:
    queue: FairQueue[int] = FairQueue({})
    for _ in range(1_000):  # alone, and never in line for long
        queue.add(10, tenant="early", now=0.0)
        served(queue, 1, refill=False)
    for tenant in ("late", "early"):
        for _ in range(3):
            queue.add(10, tenant=tenant, now=0.0)

    assert served(queue, 20)["early"] >= 90


def test_urgent_requests_are_served_sooner_but_not_more() -> None:
    queue = waiting({}, tokens={"plain": 10})
    for _ in range(3):
        queue.add(10, tenant="urgent", priority=-(2**31), now=0.0)

    first = served(queue, 9)
    after = served(queue, 200)

    assert first["urgent"] == 90
    assert abs(after["urgent"] - after["plain"]) <= 200


def test_the_urgent_pass_those_of_their_own_tenant_by_a_bounded_time() -> None:
    queue: FairQueue[str] = FairQueue({})
    queue.add("old", now=0.0)
    urgent = queue.add("urgent", priority=-3, now=29.0)
    queue.add("late and urgent", priority=-100, now=101.0)

    assert queue.first() is urgent
    queue.serve(urgent)
    found = queue.first()
    assert found is not None and found.item == "old"


def test_tokens_that_are_told_of_later_count_as_well() -> None:
    queue = waiting({}, tokens={"talks long": 1, "talks little": 1})
    counts: Counter[str] = Counter()
    for _ in range(100):
        entry = queue.first()
        assert entry is not None
        [(tenant, _)] = served(queue, 1).items()
        counts[tenant] += 1
        queue.charge(tenant, 9 if tenant == "talks long" else 1)

    assert abs(counts["talks little"] - 5 * counts["talks long"]) <= 5


def test_the_longest_line_for_its_weight_gives_up_its_last_but_equals_give_up_nobody() -> None:
    queue: FairQueue[str] = FairQueue({"heavy": 3.0})
    for name in ("h0", "h1", "h2", "a0", "a1"):
        queue.add(name, tenant=name[0].replace("h", "heavy"), now=0.0)

    leaves = queue.choose_victim(queue.add("b0", tenant="b", now=0.0))
    assert leaves is not None and leaves.item == "a1"
    queue.remove(leaves)
    assert queue.choose_victim(queue.add("a2", tenant="a", now=0.0)) is None


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(-20, 20), st.booleans(), st.integers(0, 50)),
        max_size=30,
    )
)
def test_everybody_is_served_once_and_as_many_go_before_as_was_said_at_most(
    arrivals: list[tuple[str, int, bool, int]],
) -> None:
    queue: FairQueue[int] = FairQueue({"b": 2.5})
    entries = [
        queue.add(number, tenant=tenant, priority=priority, is_retry=is_retry, now=now)
        for number, (tenant, priority, is_retry, now) in enumerate(arrivals)
    ]
    assert all(queue.num_before(entry) < len(entries) for entry in entries)

    gone = []
    while (entry := queue.first()) is not None:
        queue.serve(entry)
        queue.charge(entry.tenant, 7)
        gone.append(entry.item)

    assert sorted(gone) == list(range(len(arrivals)))
    assert len(queue) == 0
    assert [number for number in gone if arrivals[number][2]] == gone[: sum(a[2] for a in arrivals)]


def test_one_that_would_come_now_is_told_of_those_before_it_as_if_it_had_come() -> None:
    queue: FairQueue[int] = FairQueue({"heavy": 2.0})
    for number, tenant in enumerate(["a", "a", "heavy", "heavy", "heavy", "heavy"]):
        queue.add(number, tenant=tenant, now=0.0)
    queue.add(9, is_retry=True, now=0.0)

    for tenant, priority in (("a", 0), ("a", -5), ("heavy", 0), ("new", 3)):
        asked = queue.num_before_new(tenant=tenant, priority=priority, now=1.0)
        entry = queue.add(0, tenant=tenant, priority=priority, now=1.0)
        assert asked == queue.num_before(entry)
        queue.remove(entry)
