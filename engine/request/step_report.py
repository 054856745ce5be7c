"""The report of an engine step: tokens for clients, counts for metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from baton.core.errors import BatonError
from baton.core.sampling import FinishReason, TokenLogprob
from baton.core.step_times import StepWork
from baton.engine.mesh.expert_load import ExpertLoad
from baton.engine.request.request import Request


class RequestOutput(NamedTuple):
    """One request's output of a step."""

    request: Request
    is_finished: bool
    """The engine is done with the request and has freed its blocks."""
    num_run: int
    """Tokens run for the request so far; a copy, since the request may already be in the next
    step."""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    """Logprob of each token when asked for, else none."""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """Logprobs of all prompt tokens but the first, given with the first token when asked for."""
    embedding: tuple[float, ...] = ()
    """The answer of a request with a pooling, which has no tokens."""
    finish_reason: FinishReason | None = None
    """None if not finished, or if only `max_new_tokens` ended it here."""
    error: BatonError | None = None
    """Why it ended without a token."""


class StepReport(NamedTuple):
    """One step. Requests whose prompt is not yet computed have no output in it."""

    outputs: tuple[RequestOutput, ...] = ()
    first_scheduled: tuple[Request, ...] = ()
    """Requests that ran for the first time, or were refused when they were about to."""
    num_tokens: int = 0
    """Tokens run through the model: one for each token sampled, all others were prefilled."""
    num_requests: int = 0
    work: StepWork = StepWork()
    """The work of the pass, on which its time depends."""
    num_drafted: int = 0
    """Drafted tokens run to be verified, in addition; accepted ones also count as sampled."""
    num_accepted: int = 0
    num_preempted: int = 0
    num_running: int = 0
    """Counted at the end of the step, like `num_waiting`."""
    num_waiting: int = 0
    num_blocks_in_use: int = 0
    recall_ms: float = 0.0
    """Milliseconds of reading prompts' features for drafting, once per prompt."""
    draft_ms: float = 0.0
    schedule_ms: float = 0.0
    forward_ms: float = 0.0
    """Milliseconds of the forward pass: on a GPU of the launch alone, as sampling waits for the
    device."""
    sample_ms: float = 0.0
    """Milliseconds of sampling and of appending the tokens to their requests."""

    @property
    def seconds(self) -> float:
        parts = (self.recall_ms, self.draft_ms, self.schedule_ms, self.forward_ms, self.sample_ms)
        return sum(parts) / 1e3

    @property
    def is_stalled(self) -> bool:
        """Whether nothing ran, and nothing can until work is added or blocks are released."""
        return not (self.num_tokens or self.num_preempted or self.first_scheduled)


@dataclass(slots=True, kw_only=True)
class EngineStats:
    """Sums over an engine's life."""

    num_steps: int = 0
    num_tokens_run: int = 0
    num_tokens_cached: int = 0
    """Tokens found in the prefix cache when their request was first admitted."""
    num_tokens_looked_up: int = 0
    """Tokens looked up in the prefix cache at that time."""
    num_drafted: int = 0
    num_accepted: int = 0
    num_preempted: int = 0
    num_finished: int = 0
    num_aborted: int = 0
    recall_ms: float = 0.0
    draft_ms: float = 0.0
    schedule_ms: float = 0.0
    forward_ms: float = 0.0
    sample_ms: float = 0.0
    expert_load: ExpertLoad | None = None
    """Load of each expert; None without expert parallelism."""

    def add(self, report: StepReport) -> None:
        self.num_steps += 1
        self.num_tokens_run += report.num_tokens
        self.num_tokens_cached += sum(request.num_cached for request in report.first_scheduled)
        self.num_tokens_looked_up += sum(one.num_looked_up for one in report.first_scheduled)
        self.num_drafted += report.num_drafted
        self.num_accepted += report.num_accepted
        self.num_preempted += report.num_preempted
        self.num_finished += sum(output.is_finished for output in report.outputs)
        self.recall_ms += report.recall_ms
        self.draft_ms += report.draft_ms
        self.schedule_ms += report.schedule_ms
        self.forward_ms += report.forward_ms
        self.sample_ms += report.sample_ms

    def as_metrics(self) -> dict[str, float]:
        """Metrics by Prometheus name: counts end in _total, times are seconds."""
        return {
            "steps_total": self.num_steps,
            "tokens_run_total": self.num_tokens_run,
            "tokens_cached_total": self.num_tokens_cached,
            "tokens_looked_up_total": self.num_tokens_looked_up,
            "drafted_tokens_total": self.num_drafted,
            "accepted_tokens_total": self.num_accepted,
            "preemptions_total": self.num_preempted,
            "requests_finished_total": self.num_finished,
            "requests_aborted_total": self.num_aborted,
            "draft_recall_seconds_total": self.recall_ms / 1e3,
            "draft_seconds_total": self.draft_ms / 1e3,
            "schedule_seconds_total": self.schedule_ms / 1e3,
            "forward_seconds_total": self.forward_ms / 1e3,
            "sample_seconds_total": self.sample_ms / 1e3,
            **({} if self.expert_load is None else self.expert_load.as_metrics()),
        }
