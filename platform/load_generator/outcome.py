"""The outcome of one request: times, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Protocol

from baton.platform.load_generator.workload import PlannedRequest


class Ending(StrEnum):
    COMPLETED = "completed"
    REJECTED = "rejected, 429"
    REFUSED = "refused, 4xx"
    SERVER_ERROR = "server error, 5xx"
    STREAM_ERROR = "error in the stream"
    CUT = "stream cut off"
    NO_STREAM = "no event stream"
    UNREACHABLE = "no connection"
    TIMED_OUT = "timed out"
    INTERRUPTED = "interrupted"
    """Stopped by the user: counted, but not as an error."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the server counts them; None where it does not say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request over HTTP, and its answer. Times are the clock's."""

    ending: Ending
    token_times: Sequence[float] = ()
    """Times at which events with output came."""
    usage: Usage = Usage()
    detail: str = ""
    """The server's message, or the error."""
    retry_after_s: float | None = None


class LoadTarget(Protocol):
    """Sends a body to a server and returns the exchange."""

    async def ask(self, body: bytes) -> Exchange:
        """Never raises; waits for the answer until cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Times are seconds since the run began."""

    request: PlannedRequest
    ending: Ending
    due_s: float
    sent_s: float
    """The first time, where a 429 was followed by another try."""
    ended_s: float
    token_s: tuple[float, ...] = ()
    usage: Usage = Usage()
    detail: str = ""
    num_retries: int = 0

    @property
    def is_complete(self) -> bool:
        return self.ending is Ending.COMPLETED

    @property
    def late_s(self) -> float:
        """Seconds by which the generator sent too late."""
        return self.sent_s - self.due_s

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.token_s[0] - self.sent_s

    @property
    def e2e_s(self) -> float:
        return self.token_s[-1] - self.sent_s

    @property
    def gaps_s(self) -> list[float]:
        """Inter-token latencies: between an event with output and the next."""
        return [later - sooner for sooner, later in pairwise(self.token_s)]

    @property
    def output_tokens(self) -> int:
        counted = self.usage.completion_tokens
        return len(self.token_s) if counted is None else counted

    @property
    def prompt_tokens(self) -> int:
        counted = self.usage.prompt_tokens
        return self.request.input_length if counted is None else counted

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None of a single one."""
        if self.output_tokens < 2 or len(self.token_s) < 2:
            return None
        return (self.token_s[-1] - self.token_s[0]) / (self.output_tokens - 1)
