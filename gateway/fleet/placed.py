"""One attempt at its place, and what this gateway has booked for it.

    opened -> prefill over (the first token is there) -> closed

Until they end, the prompt counts as work of the prefill replica, and its blocks as on their way to
both replicas: equal prompts that arrive together go where the first of them went.
"""

from __future__ import annotations

from dataclasses import replace

from baton.core.messages import GenerateRequest, Receipt, ReplicaAddress
from baton.gateway.fleet.fleet import Fleet
from baton.router.policy import Placement
from baton.router.prompt_names import PromptNames


class Placed:
    def __init__(
        self,
        fleet: Fleet,
        placement: Placement,
        request: GenerateRequest,
        prompt: PromptNames,
    ) -> None:
        """Open the attempt: the request is on its way. Raises ReplicaLost if its link broke."""
        link = fleet.link(placement.decode.epoch)
        self.placement = placement
        source = request.source or placement.source
        self.attempt = link.open(replace(request, prefill=placement.prefill, source=source))
        self._fleet = fleet
        fleet.has_started(request.request_id, placement.decode.epoch)
        self._on_decode = fleet.expect(prompt, placement.decode.epoch)
        self._prefills_on = placement.prefill[0].epoch if placement.prefill else None
        if self._prefills_on is not None:
            self._on_prefill = fleet.expect(prompt, self._prefills_on)
            fleet.add_prefill_tokens(self._prefills_on, placement.num_prefill_tokens)

    @property
    def number(self) -> int:
        """The attempt's number, from 1."""
        return self.attempt.request.attempt

    @property
    def address(self) -> ReplicaAddress:
        """Where it runs."""
        return self.placement.decode.endpoint

    def hear(self, receipt: Receipt) -> None:
        """The attempt's last word."""
        self._fleet.meter.hear(receipt)

    def prefill_is_over(self) -> None:
        """Safe to repeat."""
        if self._prefills_on is not None:
            self._fleet.add_prefill_tokens(self._prefills_on, -self.placement.num_prefill_tokens)
            self._fleet.index.release(self._on_prefill)
            self._prefills_on = None

    def close(self, num_delivered: int) -> None:
        """Safe to repeat. `num_delivered` tokens of this attempt have reached the client."""
        self.prefill_is_over()
        self._fleet.index.release(self._on_decode)
        self._fleet.has_ended(self.attempt.request.request_id, self.placement.decode.epoch)
        self.attempt.close(num_delivered)
