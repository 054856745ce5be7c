from types import SimpleNamespace
from typing import Any

from bench.engine.step_breakdown import Had, Step, in_turns, thread_rows, threads_had


def test_the_time_of_all_threads_is_told_apart_by_what_they_had_of_it() -> None:
    took: Any = SimpleNamespace(step_s=0.010, around_s=0.001)

    [row] = thread_rows({2: [Step(took, Had(computed_s=0.012, kept_s=0.003))]})

    threads, step, around, computed, kept, asleep = row
    assert threads == "2"
    assert [round(float(each), 6) for each in (step, around, computed, kept, asleep)] == [
        10,
        1,
        12,
        3,
        5,
    ]


def test_each_step_is_charged_with_what_threads_had_meanwhile() -> None:
    clock = iter(range(1000))
    watch: Any = SimpleNamespace(step=lambda: next(clock))

    steps = in_turns(watch, [1, 2], 3, lambda: Had(float(next(clock)), 0.0))

    assert {count: len(found) for count, found in steps.items()} == {1: 3, 2: 3}
    assert {step.had for found in steps.values() for step in found} == {Had(2.0, 0.0)}


def test_computing_is_seen_in_what_threads_had() -> None:
    before = threads_had()

    sum(range(3_000_000))

    assert (threads_had() - before).computed_s > 0
