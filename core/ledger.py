"""Where every sampled token went: per incarnation, sampled = delivered + discarded + in flight.

A token is *delivered* when it has been passed on towards the client, *discarded* when nobody wanted
it any more (cancelled, behind a stop string, fenced by a higher attempt). When a replica is idle
nothing is in flight, and the books must balance.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TokenLedger:
    sampled: int = 0
    delivered: int = 0
    discarded: int = 0

    @property
    def in_flight(self) -> int:
        return self.sampled - self.delivered - self.discarded

    def sample(self, num_tokens: int) -> None:
        self.sampled += num_tokens

    def settle(self, *, delivered: int, discarded: int) -> None:
        """Close the account of one request, or of a part of it.

        Raises ValueError if more tokens would leave than were sampled.
        """
        if delivered < 0 or discarded < 0 or delivered + discarded > self.in_flight:
            raise ValueError(f"{delivered=} {discarded=} of {self.in_flight} tokens in flight")
        self.delivered += delivered
        self.discarded += discarded

    def as_metrics(self) -> dict[str, float]:
        """By Prometheus name."""
        return {
            "tokens_sampled_total": self.sampled,
            "tokens_delivered_total": self.delivered,
            "tokens_discarded_total": self.discarded,
        }
