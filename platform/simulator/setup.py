"""The setup of a simulation: a number of replicas of one kind, a load, a policy, a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baton.core.errors import InvalidConfig
from baton.platform.traces.trace import Trace
from baton.router.fairness.slo import NO_SLO, Slo
from baton.router.prompt import drawn, mixed


@dataclass(frozen=True, slots=True, kw_only=True)
class SloClass:
    """A class of requests that have an objective."""

    slo: Slo
    share: float
    """The fraction of conversations, or of requests that belong to none, that are of this class."""

    @classmethod
    def read(cls, text: str) -> SloClass:
        """NAME=TTFT_S[,ITL_S]:SHARE. Raises InvalidConfig."""
        name, _, numbers = text.partition("=")
        seconds, _, share = numbers.partition(":")
        ttft_s, _, itl_s = seconds.partition(",")
        try:
            slo = Slo(name=name, ttft_s=float(ttft_s), itl_s=float(itl_s) if itl_s else None)
            found = cls(slo=slo, share=float(share))
        except ValueError:
            found = None
        if found is None or not name or not found.slo.ttft_s or not 0 < found.share <= 1:
            raise InvalidConfig(
                f"--slo-class {text}: give NAME=TTFT_S[,ITL_S]:SHARE, such as interactive=2:0.5"
            )
        return found


def slo_of(classes: Sequence[SloClass], seed: int, conversation: str) -> Slo:
    """The objective of the requests of a conversation, drawn by its name."""
    at = mixed(seed, drawn(conversation)) / 2.0**64 if classes else 1.0
    for one in classes:
        if at < one.share:
            return one.slo
        at -= one.share
    return NO_SLO


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    num_replicas: int = 16
    num_blocks: int = 3000
    """Blocks in each replica's prefix cache."""
    block_size: int = 512
    tokens_per_s: float
    """Prompt tokens a second that a replica prefills."""
    itl_s: float = 0.0
    """Seconds from one output token to the next: they decide when an answer ends, and so when a
    session's next turn comes."""
    max_waiting: int | None = None
    """Prompts that wait, in the gateway and at the replicas; more are rejected. None: no limit."""
    slo_ttft_s: float = 10.0
    """Seconds within which a first token is in time, of requests of no class."""
    slo_classes: Sequence[SloClass] = ()

    def slo_of(self, seed: int, conversation: str) -> Slo:
        return slo_of(self.slo_classes, seed, conversation)

    def decode_s(self, output_length: int) -> float:
        """Seconds from the first token of an answer to its last."""
        return self.itl_s * max(output_length - 1, 0)


def rate_for_load(trace: Trace, load: float, num_replicas: int) -> float:
    """Tokens a second of one replica, so that computing every prompt whole takes `load` of all.

    An open loop lasts from its first arrival to its last, a closed one as long as the gaps of its
    longest session.
    """
    num_tokens = sum(request.input_length for request in trace.requests)
    if trace.is_closed_loop:
        gaps = [sum(turn.gap_s for turn in turns) for turns in trace.sessions().values()]
        duration_s = max(gaps)
    else:
        arrivals = [request.arrival_s or 0.0 for request in trace.requests]
        duration_s = max(arrivals) - min(arrivals)
    return num_tokens / (max(duration_s, 1.0) * load * num_replicas)
