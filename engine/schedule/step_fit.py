"""How long this engine's steps take, learnt from the steps themselves.

    engine's thread    add(work, seconds)         short steps of a kind -> one sample
    any thread         times(now), slowness(now)  samples -> sums -> `StepTimes`

Weighted least squares of the relative error, so that a short step counts as much as a long one:

    minimise over x >= 0    sum of w ((seconds - work . x) / predicted)^2  +  a little (x - guess)^2

`predicted` is what the fit said before, limited to half and twice the measured time.
Steps with a prompt and steps that only decode are summed separately, and each sum decays with the
time of its own kind: hours of decoding do not erase what is known of prompts. Where the samples say
nothing the guess stands: ratios as transformers have them, at the measured speed.

Samples that are off by more than usual have less weight, so a long stall says little. What is usual
follows recent samples, so a machine that stays slow is believed. `slowness` shows a change long
before the fit has followed it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from baton.core.step_times import StepTimes, StepWork, prompt_work
from baton.engine.schedule.drafted_chunks import ScheduledChunk
from baton.engine.schedule.persistent_batch import PersistentBatch

SAMPLE_S = 0.01
"""Steps of a kind are taken together until they took so long."""
HALF_LIFE_S = 20.0
"""Half-life of a sample's weight in the fit, in seconds of steps of its kind."""
HALF_LIFE_SAMPLES = 64
"""Least half-life in samples: long steps are few."""
RECENT_HALF_LIFE_S = 1.0
"""Half-life of a sample's weight in `slowness`, in seconds of steps."""
MIN_RECENT_SAMPLES = 8
"""Least samples from which slowness is told."""
FORGIVEN_AFTER_S = 10.0
"""Half-life of slowness while nothing is measured: a replica that is avoided is tried again."""
MAX_STALL = 100.0
"""What took more times what was predicted counts as if it took so many."""
REFIT_S = 0.25
"""Coefficients are not solved for more often."""
MAX_WAITING_SAMPLES = 4096
"""Older ones are dropped if nobody asks."""
NUM_ERRORS = 128
"""Samples that the spread is of."""
UNUSUAL = 3.0
"""Times the spread from which on an error is more than usual."""

GUESS = (32.0, 1.0, 2e-4, 1e-3, 0.5)
"""The ratios of constant, token, pair, context and request, as large models on GPUs have them."""
SLIVER = 1e-3
"""Least value of a coefficient, as a share of the guess."""
GUESS_WEIGHT = 0.02
"""Against one sample."""

_NUM = len(GUESS)


def work_of(chunks: Sequence[ScheduledChunk], batch: PersistentBatch | None) -> StepWork:
    """What `chunks`, about to run, add up to."""
    num_chunks = len(chunks)
    if batch is not None:
        return StepWork(num_chunks, 0, batch.num_context, num_chunks)
    num_tokens = num_pairs = num_context = 0
    for request, num_new, drafted in chunks:
        num_tokens += num_new + len(drafted)
        if num_new == 1:
            num_context += request.num_computed
        else:
            num_pairs += prompt_work(num_new, request.num_computed).num_pairs
    return StepWork(num_tokens, num_pairs, num_context, num_chunks)


class _Sample(NamedTuple):
    num_steps: int
    work: StepWork
    seconds: float
    at: float
    """End of the last step, on the engine's clock."""

    @property
    def values(self) -> tuple[float, ...]:
        return self.num_steps, *self.work

    @property
    def is_of_prompts(self) -> bool:
        return self.work.num_pairs > 0


class _Sums:
    """The normal equations of the samples of one kind."""

    def __init__(self) -> None:
        self.gram = [[0.0] * _NUM for _ in range(_NUM)]
        self.moment = [0.0] * _NUM
        self.num_steps = 0

    def add(self, sample: _Sample, weight: float, predicted_s: float) -> None:
        kept = 0.5 ** min(sample.seconds / HALF_LIFE_S, 1 / HALF_LIFE_SAMPLES)
        scale_s = min(max(predicted_s, sample.seconds / 2), 2 * sample.seconds)
        row = [value / scale_s for value in sample.values]
        ratio = sample.seconds / scale_s
        for i, one in enumerate(row):
            self.moment[i] = kept * self.moment[i] + weight * one * ratio
            self.gram[i] = [
                kept * past + weight * one * other
                for past, other in zip(self.gram[i], row, strict=True)
            ]
        self.num_steps += sample.num_steps


class _Recent:
    """What recent steps took against what was predicted, all together."""

    def __init__(self) -> None:
        self.num_samples = 0
        self._seconds = self._predicted_s = 0.0

    @property
    def ratio(self) -> float:
        return self._seconds / self._predicted_s if self.num_samples else 1.0

    def add(self, seconds: float, predicted_s: float) -> None:
        seconds = min(seconds, MAX_STALL * predicted_s)
        kept = 0.5 ** min(seconds / RECENT_HALF_LIFE_S, 1 / MIN_RECENT_SAMPLES)
        self._seconds = kept * self._seconds + seconds
        self._predicted_s = kept * self._predicted_s + predicted_s
        self.num_samples += 1


class StepFit:
    """`add` is for the engine's thread, the rest for one other."""

    def __init__(self) -> None:
        self._open: _Sample | None = None
        """Steps that are not a sample yet; the engine's thread's own."""
        self._waiting: deque[_Sample] = deque(maxlen=MAX_WAITING_SAMPLES)
        self._prompts, self._decodes = _Sums(), _Sums()
        self._coefficients: list[float] = []
        """Empty before the first sample."""
        self._errors: deque[float] = deque(maxlen=NUM_ERRORS)
        self._spread = 1.0
        self._recent = _Recent()
        self._measured_at = 0.0
        self._fitted_at = float("-inf")

    def add(self, work: StepWork, seconds: float, now: float) -> None:
        """A step is over that did `work` in `seconds`."""
        if seconds <= 0:
            return
        before = self._open
        if before is not None and before.is_of_prompts != (work.num_pairs > 0):
            self._waiting.append(before)
            before = None
        sample = (
            _Sample(1, work, seconds, now)
            if before is None
            else _joined(before, work, seconds, now)
        )
        if sample.seconds >= SAMPLE_S:
            self._waiting.append(sample)
            self._open = None
        else:
            self._open = sample

    def times(self, now: float) -> StepTimes:
        """The fit to all that was measured, but perhaps the last quarter of a second."""
        self._take_in(now)
        if not self._coefficients:
            return StepTimes()
        constant_s, token_s, pair_s, context_s, request_s = self._coefficients
        return StepTimes(
            constant_s=constant_s,
            token_s=token_s,
            pair_s=pair_s,
            context_s=context_s,
            request_s=request_s,
            spread=self._spread,
            num_prompt_steps=self._prompts.num_steps,
            num_decode_steps=self._decodes.num_steps,
            age_s=max(0.0, now - self._measured_at),
        )

    def slowness(self, now: float) -> float:
        """How many times what was predicted recent steps took. 1: as ever, or too few to say."""
        self._take_in(now)
        if self._recent.num_samples < MIN_RECENT_SAMPLES:
            return 1.0
        idle_s = max(0.0, now - self._measured_at)
        return float(self._recent.ratio ** (0.5 ** (idle_s / FORGIVEN_AFTER_S)))

    def _take_in(self, now: float) -> None:
        if not self._waiting or now - self._fitted_at < REFIT_S:
            return
        self._fitted_at = now
        samples = [self._waiting.popleft() for _ in range(len(self._waiting))]
        for sample in samples:
            sums = self._prompts if sample.is_of_prompts else self._decodes
            if self._coefficients:
                predicted_s = _dot(sample.values, self._coefficients)
                sums.add(sample, self._weight(sample, predicted_s), predicted_s)
            else:
                sums.add(sample, 1.0, sample.seconds)
        self._measured_at = samples[-1].at
        self._coefficients = self._solve()
        self._errors.extend(self._error(sample) for sample in samples)
        self._spread = median(self._errors)

    def _weight(self, sample: _Sample, predicted_s: float) -> float:
        """Huber's: 1 for what is usual. Counts the sample as recent, too."""
        self._recent.add(sample.seconds, predicted_s)
        error = self._error(sample)
        return min(1.0, UNUSUAL * max(self._spread, 1e-3) / error) if error else 1.0

    def _error(self, sample: _Sample) -> float:
        predicted_s = _dot(sample.values, self._coefficients) * self._recent.ratio
        return abs(min(sample.seconds / predicted_s, MAX_STALL) - 1.0)

    def _solve(self) -> list[float]:
        """The coefficients, solved for in units of the guess. None is 0: whatever a step does takes
        some time."""
        gram = [
            [one + other for one, other in zip(*lines, strict=True)]
            for lines in zip(self._prompts.gram, self._decodes.gram, strict=True)
        ]
        moment = [a + b for a, b in zip(self._prompts.moment, self._decodes.moment, strict=True)]
        speed = _dot(GUESS, moment) / _dot(GUESS, [_dot(line, GUESS) for line in gram])
        units = [speed * ratio for ratio in GUESS]
        for i, unit in enumerate(units):
            gram[i] = [value * unit * other for value, other in zip(gram[i], units, strict=True)]
            gram[i][i] += GUESS_WEIGHT
            moment[i] = moment[i] * unit + GUESS_WEIGHT
        solved = _non_negative_solution(gram, moment)
        return [max(value, SLIVER) * unit for value, unit in zip(solved, units, strict=True)]


def _joined(before: _Sample, work: StepWork, seconds: float, now: float) -> _Sample:
    both = StepWork(*map(int.__add__, before.work, work))
    return _Sample(before.num_steps + 1, both, before.seconds + seconds, now)


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def _non_negative_solution(gram: Sequence[Sequence[float]], moment: Sequence[float]) -> list[float]:
    """Least squares without the coefficients that would be negative, the worst left out first."""
    kept = list(range(len(moment)))
    while True:
        solved = _solution([[gram[i][j] for j in kept] for i in kept], [moment[i] for i in kept])
        worst = min(range(len(kept)), key=solved.__getitem__)
        if solved[worst] >= 0:
            break
        del kept[worst]
    values = [0.0] * len(moment)
    for i, value in zip(kept, solved, strict=True):
        values[i] = value
    return values


def _solution(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Solution of a symmetric, positive definite system: elimination needs no pivots."""
    size = len(right)
    for i in range(size):
        for j in range(i + 1, size):
            factor = matrix[j][i] / matrix[i][i]
            for k in range(i, size):
                matrix[j][k] -= factor * matrix[i][k]
            right[j] -= factor * right[i]
    solved = [0.0] * size
    for i in reversed(range(size)):
        known = sum(matrix[i][k] * solved[k] for k in range(i + 1, size))
        solved[i] = (right[i] - known) / matrix[i][i]
    return solved
