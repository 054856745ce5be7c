"""A model of how long this engine's steps take, fitted to measured steps.

    engine's thread    add(work, seconds)         short steps of a kind -> one sample
    any thread         times(now), slowness(now)  samples -> sums -> `StepTimes`

The fit is weighted least squares of the relative error, so that a short step counts as much as a
long one:

    minimise over x >= 0    sum of w ((seconds - work . x) / predicted)^2  +  a little (x - guess)^2

`predicted` is the earlier fit's prediction, limited to half and twice the measured time.
Steps with a prompt and steps that only decode are summed separately, and each sum decays with the
time spent on its own kind: hours of decoding do not erase what is known of prompts. Coefficients
that the samples do not determine follow the guess: typical ratios of a transformer, scaled to the
measured speed.

A sample with an unusually large error has less weight (Huber's loss), so a single long stall
changes little. The usual error is that of recent samples, so a machine that stays slow does change
the fit. `slowness` shows a change of speed long before the fit has followed it.
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
"""Consecutive steps of one kind are merged into a sample until they add up to this many seconds."""
HALF_LIFE_S = 20.0
"""Half-life of a sample's weight in the fit, in seconds of steps of its kind."""
HALF_LIFE_SAMPLES = 64
"""Lower bound of the half-life, in samples, because there are few long steps."""
RECENT_HALF_LIFE_S = 1.0
"""Half-life of a sample's weight in `slowness`, in seconds of steps."""
MIN_RECENT_SAMPLES = 8
"""`slowness` is 1 until there are this many samples."""
FORGIVEN_AFTER_S = 10.0
"""Half-life of slowness, in seconds without measurements, so that a replica that the router avoids
is tried again."""
MAX_STALL = 100.0
"""A sample that took longer than this many times its prediction counts as if it took that long."""
REFIT_S = 0.25
"""Least seconds between two solves for the coefficients."""
MAX_WAITING_SAMPLES = 4096
"""Most samples kept between two fits; the oldest are dropped beyond that."""
NUM_ERRORS = 128
"""Number of recent samples whose median error is the spread."""
UNUSUAL = 3.0
"""An error counts as unusual above this many times the spread."""

GUESS = (32.0, 1.0, 2e-4, 1e-3, 0.5)
"""Relative costs of a step, a token, a query-key pair, a context token and a request, typical of
large models on GPUs. Only their ratios matter."""
SLIVER = 1e-3
"""Lower bound of a coefficient, as a share of its guess."""
GUESS_WEIGHT = 0.02
"""Weight of the guess relative to one sample."""

_NUM = len(GUESS)


def work_of(chunks: Sequence[ScheduledChunk], batch: PersistentBatch | None) -> StepWork:
    """The work of a pass of `chunks` that is about to run."""
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
    """Measured over predicted time of recent steps; older steps decay."""

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
    """The fitted step times. `add` is called by the engine's thread, everything else by one other
    thread."""

    def __init__(self) -> None:
        self._open: _Sample | None = None
        """Steps that do not make a whole sample yet; only the engine's thread uses it."""
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
        """Add a step that did `work` in `seconds` and ended at `now`."""
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
        """The fit to all measured steps, except perhaps those of the last `REFIT_S` seconds."""
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
        """Measured over predicted time of recent steps; 1 while there are too few to tell."""
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
        """The sample's weight by Huber's loss: 1 for a usual error, less for a larger one. Also
        adds the sample to the recent ones."""
        self._recent.add(sample.seconds, predicted_s)
        error = self._error(sample)
        return min(1.0, UNUSUAL * max(self._spread, 1e-3) / error) if error else 1.0

    def _error(self, sample: _Sample) -> float:
        predicted_s = _dot(sample.values, self._coefficients) * self._recent.ratio
        return abs(min(sample.seconds / predicted_s, MAX_STALL) - 1.0)

    def _solve(self) -> list[float]:
        """The coefficients, solved for in units of the guess. Each is at least `SLIVER` of its
        guess, because every kind of work takes some time."""
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
    """Least squares solution with all coefficients at least 0: as long as one is negative, the most
    negative one is fixed at 0 and the rest solved again."""
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
    """Solve matrix @ x = right by Gaussian elimination. The matrix is symmetric and positive
    definite, so no pivoting is needed. Overwrites both arguments."""
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
