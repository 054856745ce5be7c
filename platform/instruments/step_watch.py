"""Records the steps of a real engine and their phases.

    step      draft | schedule | forward | sample | rest
    forward   batch | parts of the model | head | bookkeeping

`batch` is the time of a pass outside the model's parts: building and uploading tensors, and Python.
`rest` is all other time: reports, and the measurement itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.batch.batch import Chunk, OnLayer, ignore_layer
from baton.engine.engine import Engine
from baton.engine.models.skeleton.decoder import Decoder
from baton.engine.passes.runner import ModelRunner, Runner
from baton.kernels.products.vocabulary_screen import ScreenedTokens
from baton.kernels.sampling.draw_token import Draws
from baton.platform.instruments.part_clock import ModuleClock, Span
from baton.platform.instruments.tape_clock import TapeClock
from baton.platform.models.model_shape import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of one step."""

    started_at: float
    """Start of the step, by time.perf_counter."""
    step_s: float
    draft_s: float
    schedule_s: float
    forward_s: float
    """Seconds between schedule and sampling."""
    sample_s: float
    pass_s: float
    """The time of the model up to its head, part of `forward_s`."""
    head_s: float
    part_s: Mapping[Part, float]
    """The time of each part of the pass, where it is known, and of the head."""
    pass_at: float
    """Start of the pass."""
    spans: Sequence[Span]
    """The spans of the model."""
    num_tokens: int
    num_requests: int

    @property
    def is_prefill(self) -> bool:
        """Whether a request computed more than its last token."""
        return self.num_tokens > self.num_requests

    @property
    def batch_s(self) -> float:
        known = sum(took for part, took in self.part_s.items() if part is not Part.HEAD)
        return max(0.0, self.pass_s - known) if known else 0.0

    @property
    def bookkeeping_s(self) -> float:
        return max(0.0, self.forward_s - self.pass_s - self.head_s)

    @property
    def rest_s(self) -> float:
        known_s = self.draft_s + self.schedule_s + self.forward_s + self.sample_s
        return max(0.0, self.step_s - known_s)

    @property
    def around_s(self) -> float:
        """Seconds outside the model."""
        return self.step_s - self.pass_s - self.head_s + self.batch_s


class WatchedRunner:
    """A runner that delegates, and times passes, parts and heads."""

    def __init__(self, runner: Runner, model: Decoder) -> None:
        self.info = runner.info
        self.cache = runner.cache
        self.pass_at = 0.0
        self.pass_s = 0.0
        self.head_s = 0.0
        self.modules = ModuleClock(model)
        taped = runner.taped if isinstance(runner, ModelRunner) else None
        self._tape = None if taped is None else TapeClock(model, taped)
        self._runner = runner

    @property
    def part_s(self) -> dict[Part, float]:
        """The time of each part of the pass and, once it is computed, of the head."""
        on_tape = {} if self._tape is None else self._tape.seconds
        found = {**self.modules.seconds, **on_tape}
        return {**found, Part.HEAD: self.head_s} if self.head_s else found

    @property
    def spans(self) -> list[Span]:
        return [*self.modules.spans, *([] if self._tape is None else self._tape.spans)]

    def reset(self) -> None:
        self.pass_s = self.head_s = 0.0
        self.modules.reset()
        if self._tape is not None:
            self._tape.reset()

    def forward(self, chunks: Sequence[Chunk], on_layer: OnLayer = ignore_layer) -> Tensor:
        started = time.perf_counter()
        tape = self._tape
        if tape is not None and tape.taped.fits(chunks):
            hidden = tape.forward(tape.taped.batch.fill(chunks))
            for layer in range(self.info.num_layers):
                on_layer(layer)
        else:
            hidden = self._runner.forward(chunks, on_layer)
            self._wait()
        self.pass_at = started
        self.pass_s += time.perf_counter() - started
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        started = time.perf_counter()
        if self._tape is not None and self._tape.taped.takes(hidden):
            logits = self._tape.logits(hidden)
        else:
            logits = self._runner.logits(hidden)
            self._wait()
        self.head_s += time.perf_counter() - started
        return logits

    def screened_tokens(self, hidden: Tensor, draws: Draws | None = None) -> ScreenedTokens | None:
        started = time.perf_counter()
        found = self._runner.screened_tokens(hidden, draws)
        self.head_s += time.perf_counter() - started
        return found

    def _wait(self) -> None:
        """Wait for the GPU, so that each part's time is its own."""
        if self.cache.device.type == "cuda":
            torch.cuda.synchronize(self.cache.device)


class StepWatch:
    def __init__(self, engine: Engine, runner: WatchedRunner) -> None:
        self._engine = engine
        self._runner = runner

    def step(self) -> StepTime:
        runner = self._runner
        runner.reset()
        started = time.perf_counter()
        report = self._engine.step()
        step_s = time.perf_counter() - started
        return StepTime(
            started_at=started,
            step_s=step_s,
            draft_s=(report.recall_ms + report.draft_ms) / 1e3,
            schedule_s=report.schedule_ms / 1e3,
            forward_s=report.forward_ms / 1e3,
            sample_s=report.sample_ms / 1e3,
            pass_s=runner.pass_s,
            head_s=runner.head_s,
            part_s=runner.part_s,
            pass_at=runner.pass_at,
            spans=runner.spans,
            num_tokens=report.num_tokens,
            num_requests=report.num_requests,
        )


@contextmanager
def watching(engine: Engine, model: Decoder) -> Iterator[StepWatch]:
    """Context in which the steps of `engine`, which runs `model`, are recorded."""
    runner = engine.runner
    watched = WatchedRunner(runner, model)
    engine.runner = watched
    try:
        # Hooks on modules of a GPU would time their launches.
        with watched.modules if runner.cache.device.type == "cpu" else nullcontext():
            yield StepWatch(engine, watched)
    finally:
        engine.runner = runner
