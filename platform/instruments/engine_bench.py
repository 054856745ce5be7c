"""Measures an engine in prefill and decode, each point with ceilings of the same minute.

    prefill    one prompt of n tokens, alone, in the chunks that the scheduler makes of it
    decode     b requests of one context, each of which gets one token a step

Steps are those of the real engine, with scheduling and sampling; requests of `decode` are added
with their KV, as after a handoff.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from baton.platform.instruments.ceilings import Ceilings, read_bandwidth
from baton.platform.instruments.loaded_engine import LoadedEngine
from baton.platform.instruments.pass_cost import (
    Chunk,
    Work,
    WorkByPart,
    arithmetic_s,
    pass_work,
    total,
)
from baton.platform.instruments.regime import Diagnosis, Timed, diagnose
from baton.platform.instruments.step_watch import StepTime, StepWatch, watching
from baton.platform.models.model_shape import Part

WARM_UP_TOKENS = 16
WARM_UP_STEPS = 2
MAX_STEPS = 48
"""The most steps of one point of decode."""
MIN_STEPS = 5
POINT_S = 0.6
MAX_REPEATS = 3

Report = Callable[[str], None]
"""Called with a description of the current measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measurement. Times are seconds, of a whole prompt or of a step."""

    batch: int
    context: int
    """The tokens of each request, at the end of the prompt or when the steps began."""
    num_tokens: int
    """Tokens computed in that time."""
    seconds: float
    work: WorkByPart
    part_s: dict[Part, float]
    around_s: float
    ceilings: Ceilings
    diagnosis: Diagnosis

    @property
    def tokens_s(self) -> float:
        return self.num_tokens / self.seconds

    @property
    def bytes_s(self) -> float:
        return total(self.work).num_bytes / self.seconds

    @property
    def flops_s(self) -> float:
        return total(self.work).flops / self.seconds

    @property
    def arithmetic_share(self) -> float:
        """The share of the time that its arithmetic would take at the ceilings."""
        return arithmetic_s(self.work, self.ceilings) / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    what: str
    why: str


@dataclass(slots=True)
class Measured:
    prefill: list[Point] = field(default_factory=list)
    decode: list[Point] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBench:
    measured: LoadedEngine
    ceilings: Ceilings
    """The matrix rate of all points; bandwidth is measured again at every point."""
    ends_at: float
    """Deadline by time.monotonic: no point begins after it."""
    report: Report

    def prefill(self, lengths: Sequence[int], into: Measured) -> None:
        with watching(self.measured.engine, self.measured.loaded.model) as watch:
            self._prompt_steps(
                watch, min(WARM_UP_TOKENS, *lengths), seed="first"
            )  # one-time costs of the first pass
            for length in lengths:
                if why := self._why_not(1, length, 1):
                    into.skipped.append(Skipped(what=f"prefill of {length}", why=why))
                    continue
                self.report(f"prefill of {length} tokens")
                into.prefill.append(self._prefill_point(watch, length))

    def decode(self, batches: Sequence[int], contexts: Sequence[int], into: Measured) -> None:
        with watching(self.measured.engine, self.measured.loaded.model) as watch:
            for context in contexts:
                for batch in batches:
                    if why := self._why_not(batch, context, WARM_UP_STEPS + MAX_STEPS):
                        what = f"decode of {batch} at {context}"
                        into.skipped.append(Skipped(what=what, why=why))
                        continue
                    self.report(f"decode of {batch} requests at {context} tokens")
                    into.decode.append(self._decode_point(watch, batch, context))

    def _why_not(self, batch: int, context: int, num_steps: int) -> str | None:
        engine, num_tokens = self.measured.engine, context + num_steps
        if time.monotonic() > self.ends_at:
            return "--max-seconds are over"
        if num_tokens > engine.info.max_model_len:
            return f"the model takes {engine.info.max_model_len} tokens a request"
        if batch * engine.pool.layout.num_blocks_for(num_tokens) > engine.pool.num_blocks:
            return f"the cache holds {self.measured.max_tokens} tokens"
        if num_tokens > engine.max_model_len:
            return f"--max-model-len is {engine.max_model_len}"
        return None

    def _prefill_point(self, watch: StepWatch, length: int) -> Point:
        before = read_bandwidth(self.measured.device)
        tries: list[list[StepTime]] = []
        started = time.monotonic()
        while len(tries) < MAX_REPEATS and (
            not tries or time.monotonic() - started < POINT_S * MAX_REPEATS
        ):
            tries.append(self._prompt_steps(watch, length, seed=f"{length}, {len(tries)}"))
        steps = sorted(tries, key=_seconds)[len(tries) // 2]
        ends = list(accumulate(step.num_tokens for step in steps))
        chunks = [
            Chunk(num_tokens=step.num_tokens, context=end)
            for step, end in zip(steps, ends, strict=True)
        ]
        shape = self.measured.shape
        work = _sum([_without_head(pass_work(shape, [chunk])) for chunk in chunks[:-1]]
                    + [pass_work(shape, [chunks[-1]])])  # fmt: skip
        timed = Timed(
            step_s=_seconds(steps),
            around_s=sum(step.around_s for step in steps),
            part_s=_part_sums(steps),
        )
        return self._point(1, length, length, work, timed, before)

    def _prompt_steps(self, watch: StepWatch, length: int, seed: str) -> list[StepTime]:
        """Steps until the first and only token."""
        self.measured.add(length, seed=seed, max_tokens=1)
        return list(_until_idle(watch, lambda: self.measured.engine.has_work))

    def _decode_point(self, watch: StepWatch, batch: int, context: int) -> Point:
        before = read_bandwidth(self.measured.device)
        requests = [
            self.measured.add_decoding(
                context, seed=f"decoding {context}, {index}", max_tokens=2 * MAX_STEPS
            )
            for index in range(batch)
        ]
        for _ in range(WARM_UP_STEPS):
            watch.step()
        steps: list[StepTime] = []
        started = time.monotonic()
        while len(steps) < MAX_STEPS and (
            len(steps) < MIN_STEPS or time.monotonic() - started < POINT_S
        ):
            steps.append(watch.step())
        self.measured.drop(requests)
        middle = context + WARM_UP_STEPS + len(steps) // 2
        chunks = [Chunk(num_tokens=1, context=middle)] * batch
        timed = Timed(
            step_s=statistics.median(step.step_s for step in steps),
            around_s=statistics.median(step.around_s for step in steps),
            part_s=_part_medians(steps),
        )
        work = pass_work(self.measured.shape, chunks)
        return self._point(batch, context, batch, work, timed, before)

    def _point(
        self, batch: int, context: int, num_tokens: int, work: WorkByPart, timed: Timed,
        read_before: float,
    ) -> Point:  # fmt: skip
        read = (read_before + read_bandwidth(self.measured.device)) / 2
        ceilings = replace(self.ceilings, read_bytes_s=read * 1e9)
        return Point(
            batch=batch,
            context=context,
            num_tokens=num_tokens,
            seconds=timed.step_s,
            work=work,
            part_s=dict(timed.part_s),
            around_s=timed.around_s,
            ceilings=ceilings,
            diagnosis=diagnose(work, ceilings, timed),
        )


def _until_idle(watch: StepWatch, has_work: Callable[[], bool]) -> Iterator[StepTime]:
    while has_work():
        yield watch.step()


def _seconds(steps: Sequence[StepTime]) -> float:
    return sum(step.step_s for step in steps)


def _part_sums(steps: Sequence[StepTime]) -> dict[Part, float]:
    found: dict[Part, float] = {}
    for step in steps:
        for part, took in step.part_s.items():
            found[part] = found.get(part, 0.0) + took
    return found


def _part_medians(steps: Sequence[StepTime]) -> dict[Part, float]:
    parts = steps[-1].part_s
    return {part: statistics.median(step.part_s.get(part, 0.0) for step in steps) for part in parts}


def _without_head(work: WorkByPart) -> WorkByPart:
    """The work of a chunk before a prompt's last one, without sampling."""
    return {part: one for part, one in work.items() if part not in (Part.HEAD, Part.SAMPLING)}


def _sum(works: Sequence[WorkByPart]) -> WorkByPart:
    found: dict[Part, Work] = {}
    for work in works:
        for part, one in work.items():
            found[part] = found.get(part, Work()) + one
    return found
