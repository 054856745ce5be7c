from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from baton.core.gathering import Gathering


def test_values_that_come_before_they_are_asked_for_are_handed_on_at_once() -> None:
    posted, taken = list[Callable[[], None]](), list[list[int]]()
    gathering = Gathering[int](posted.append, taken.append)

    for value in range(3):
        gathering.add(value)
    posted.pop()()
    gathering.add(3)
    posted.pop()()

    assert (posted, taken) == ([], [[0, 1, 2], [3]])


def test_each_value_of_any_thread_is_handed_on_once() -> None:
    taken: list[int] = []
    with ThreadPoolExecutor(1) as owner, ThreadPoolExecutor(4) as threads:
        gathering = Gathering[int](owner.submit, taken.extend)
        list(threads.map(gathering.add, range(2000)))

    assert sorted(taken) == list(range(2000))
