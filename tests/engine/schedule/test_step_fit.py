"""How long steps take is learnt from steps: known coefficients, measured machines, changes."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from random import Random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.core.step_times import StepTimes, StepWork, prompt_work
from baton.engine.schedule.step_fit import StepFit

MEASURED = Path(__file__).parent / "measured_steps.csv"
TRUE = StepTimes(
    constant_s=0.02, token_s=2e-4, pair_s=3e-8, context_s=2e-7, request_s=1e-4, num_decode_steps=1
)
Step = tuple[StepWork, float]


class Machine:
    """Runs steps as long as `TRUE` says, with noise; its fit is asked now and then."""

    def __init__(self, seed: int = 0) -> None:
        self.fit = StepFit()
        self.now = 0.0
        self.speed = 1.0
        self._draw = Random(seed)

    def run(self, *works: StepWork, times: int = 1, noise: float = 0.05) -> None:
        for _ in range(times):
            for work in works:
                seconds = (
                    TRUE.predict_s(work) / self.speed * self._draw.uniform(1 - noise, 1 + noise)
                )
                self.pause(seconds)
                self.fit.add(work, seconds, self.now)
                self.fit.times(self.now)

    def pause(self, seconds: float) -> None:
        self.now += seconds

    @property
    def times(self) -> StepTimes:
        self.pause(1.0)
        return self.fit.times(self.now)

    @property
    def slowness(self) -> float:
        return self.fit.slowness(self.now)


def decode(num_requests: int, length: int) -> StepWork:
    return StepWork(num_requests, 0, num_requests * length, num_requests)


def off(fitted: StepTimes, work: StepWork) -> float:
    return abs(fitted.predict_s(work) / TRUE.predict_s(work) - 1)


PROMPTS = (prompt_work(100, 0), prompt_work(700, 0), prompt_work(2048, 6000), prompt_work(2048, 0))
DECODES = (decode(1, 300), decode(8, 4000), decode(64, 500), decode(20, 16000))


def measured_machines() -> dict[str, list[Step]]:
    """By model, device and ranks: the steps that were measured there."""
    steps: defaultdict[str, list[Step]] = defaultdict(list)
    lines = (line for line in MEASURED.open() if not line.startswith("#"))
    for row in csv.DictReader(lines):
        where = f"{row['model']} {row['hardware']} {row['tensor_parallel']}"
        prompt, batch, output = (int(row[f"{name}_size"]) for name in ("prompt", "batch", "token"))
        if batch == 1:  # others went through in several passes
            steps[where].append((prompt_work(prompt, 0), float(row["prompt_time"]) / 1e3))
        step = decode(batch, prompt + output // 2)
        steps[where].append((step, float(row["token_time"]) / 1e3))
    return steps


@pytest.mark.parametrize("where", sorted(measured_machines()))
def test_half_of_a_measured_machines_steps_predict_the_other_half(where: str) -> None:
    steps = measured_machines()[where]
    Random(0).shuffle(steps)
    seen, held_out = steps[::2], steps[1::2]
    fit, now = StepFit(), 0.0

    for work, seconds in seen * 4:
        now += seconds
        fit.add(work, seconds, now)
    fitted = fit.times(now)

    errors = [abs(fitted.predict_s(work) / seconds - 1) for work, seconds in held_out]
    assert median(errors) < 0.07


@given(seed=st.integers(0, 2**16), mix=st.permutations((*PROMPTS, *DECODES)))
@settings(max_examples=10, deadline=None)
def test_known_times_are_recovered_from_noisy_steps(seed: int, mix: Iterable[StepWork]) -> None:
    machine = Machine(seed)
    machine.run(*mix, times=20)
    fitted = machine.times

    unseen = (prompt_work(1500, 1000), decode(32, 2000), decode(4, 100))
    assert max(off(fitted, work) for work in (*PROMPTS, *DECODES, *unseen)) < 0.08
    assert 0.01 < fitted.spread < 0.06
    assert (fitted.num_prompt_steps, fitted.num_decode_steps) == (80, 80)


def test_hours_of_decoding_leave_what_is_known_of_prompts() -> None:
    machine = Machine()
    machine.run(*PROMPTS, *DECODES, times=10)
    machine.run(decode(8, 1000), decode(9, 1000), times=1500)

    assert max(off(machine.times, work) for work in PROMPTS) < 0.1


def test_who_has_only_decoded_says_so_and_guesses_prompts() -> None:
    machine = Machine()
    machine.run(*DECODES, times=20)
    fitted = machine.times

    assert max(off(fitted, work) for work in DECODES) < 0.05
    assert fitted.num_prompt_steps == 0
    assert fitted.pair_s > 0


def test_long_stalls_change_little() -> None:
    machine = Machine()
    machine.pause(30.0)
    machine.fit.add(prompt_work(100, 0), 30.0, machine.now)  # compiled what it needed
    for _ in range(8):
        machine.run(*PROMPTS, *DECODES, times=3)
        machine.pause(5.0)
        machine.fit.add(decode(8, 4000), 5.0, machine.now)

    assert max(off(machine.times, work) for work in (*PROMPTS, *DECODES)) < 0.1


def test_a_machine_of_half_the_speed_is_slow_within_seconds_and_then_the_fit_follows() -> None:
    machine = Machine()
    machine.run(*DECODES, times=100)
    assert machine.slowness == pytest.approx(1.0, abs=0.05)

    machine.speed = 0.5
    since = machine.now
    machine.run(*DECODES, times=8)
    assert machine.now - since < 4.0
    assert machine.slowness > 1.6

    machine.run(*DECODES, times=1000)
    assert machine.slowness == pytest.approx(1.0, abs=0.1)
    assert machine.times.predict_s(DECODES[0]) == pytest.approx(
        2 * TRUE.predict_s(DECODES[0]), rel=0.1
    )


def test_slowness_is_forgiven_while_nothing_runs() -> None:
    machine = Machine()
    machine.run(*DECODES, times=50)
    machine.speed = 0.25
    machine.run(*DECODES, times=20)
    slow = machine.slowness
    machine.pause(40.0)

    assert slow > 2.5
    assert machine.slowness < 1.1
    assert machine.times.age_s == pytest.approx(41.0)


def test_nothing_is_known_before_the_first_step() -> None:
    assert not StepFit().times(7.0).is_known
    assert StepFit().slowness(7.0) == 1.0


@given(
    num_cached=st.integers(0, 5000), num_new=st.integers(1, 5000), chunk=st.sampled_from((16, 512))
)
def test_a_prompts_time_is_the_sum_of_its_passes(num_cached: int, num_new: int, chunk: int) -> None:
    starts = range(num_cached, num_cached + num_new, chunk)
    end = num_cached + num_new
    passes = [prompt_work(min(chunk, end - start), start) for start in starts]

    whole = TRUE.prefill_s(end, num_cached, chunk)

    assert whole == pytest.approx(sum(map(TRUE.predict_s, passes)))
    assert TRUE.decode_s(3, 600) == pytest.approx(TRUE.predict_s(decode(3, 200)))


def test_steps_that_grow_faster_than_their_context_leave_no_step_without_time() -> None:
    """Caches that overflow: all of it is put down to the context, and then one token runs alone."""
    fit, now = StepFit(), 0.0
    for length in range(1_000, 60_000, 500):
        seconds = 1e-9 * length**1.6
        now += seconds
        fit.add(decode(1, length), seconds, now)
    now += 1.0
    assert fit.times(now).is_known

    for _ in range(50):
        now += 1.0
        fit.add(StepWork(1, 0, 0, 1), 0.02, now)

    now += 1.0
    assert fit.slowness(now) > 0
    assert fit.times(now).decode_s(1, 0) > 0
