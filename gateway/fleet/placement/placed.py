"""One attempt on its replicas, and this gateway's accounting for it.

    opened -> prefill over (first token received) -> closed

Until prefill is over, the prompt counts as work of the replica that computes it, and its blocks as
expected on both replicas, so that equal prompts that arrive together go to the same replicas.
"""

from __future__ import annotations

import math
from dataclasses import replace

from baton.core.messages import GenerateRequest, Receipt
from baton.core.replicas import ReplicaAddress
from baton.gateway.fleet.fleet import Fleet
from baton.gateway.fleet.placement.decision_log import FollowedDecision
from baton.gateway.requests.generations.prompt_progress import PromptProgress
from baton.router.cache.prompt_names import PromptNames
from baton.router.placement import Placement


class Placed:
    def __init__(
        self,
        fleet: Fleet,
        placement: Placement,
        request: GenerateRequest,
        prompt: PromptNames,
    ) -> None:
        """Open the attempt and send the request. Raises ReplicaLost if the link broke."""
        link = fleet.link(placement.decode.epoch)
        self.placement = placement
        source = request.source or placement.source
        self.attempt = link.open(replace(request, prefill=placement.prefill, source=source))
        self._fleet = fleet
        fleet.loads.has_started(request.request_id, placement.decode.epoch)
        self._on_decode = fleet.expect(prompt, placement.decode.epoch)
        is_apart = bool(placement.prefill)
        self._computes = placement.prefill[0].epoch if is_apart else placement.decode.epoch
        self._on_prefill = fleet.expect(prompt, self._computes) if is_apart else None
        self._pair = None if source is None else (source.epoch, placement.decode.epoch)
        """Lender and taker of a pull; only for a pull by the decode replica, since receipts report
        no other."""
        self._followed: FollowedDecision | None = None
        self._is_prefilling = True
        fleet.loads.book(placement, self._computes)

    @property
    def number(self) -> int:
        """The attempt's number, from 1."""
        return self.attempt.request.attempt

    @property
    def address(self) -> ReplicaAddress:
        """The address of its decode replica."""
        return self.placement.decode.endpoint

    def observe(self, receipt: Receipt) -> None:
        """Take in the attempt's receipt."""
        if self._followed is not None:
            self._followed.observe(receipt, self.placement.decode.epoch)
        computed_by = (
            peer.epoch
            for peer in self.placement.prefill
            if peer.replica_id == receipt.prefill_replica
        )
        computes = next(computed_by, None)
        handed_off = None if computes is None else (computes, self.placement.decode.epoch)
        self._fleet.loads.hear_receipt(receipt, self._pair, handed_off)

    def follow(self, followed: FollowedDecision) -> None:
        """Report the attempt's progress to `followed`."""
        self._followed = followed

    def deliver(self, num_tokens: int) -> None:
        """Count received tokens; the first of them ends the prefill."""
        if self._followed is not None:
            self._followed.deliver(num_tokens)  # before other requests are placed by it
        self.prefill_is_over()

    def prefill_is_over(self, *, is_taken_back: bool = False) -> None:
        """Safe to repeat."""
        if not self._is_prefilling:
            return
        self._is_prefilling = False
        if self._on_prefill is not None:
            self._fleet.index.release(self._on_prefill)
        prompt = self.placement.prompt
        self._fleet.loads.prompt_is_over(prompt, self._computes, is_taken_back=is_taken_back)

    def progress(self, now: float) -> PromptProgress | None:
        """The progress of its prefill, until that is over."""
        prompt = self.placement.prompt
        candidate = self._fleet.loads.candidate(self._computes)
        booking = None if candidate is None else candidate.open.get(prompt.number)
        if candidate is None or booking is None:
            return None
        left_s = candidate.until_s(booking, now)
        num_left = math.ceil(booking.num_new_tokens * min(left_s / booking.work_s, 1.0))
        return PromptProgress(
            state="computed",
            position=list(candidate.open).index(prompt.number),
            total=prompt.num_tokens,
            cache=prompt.num_tokens - booking.num_new_tokens,
            processed=prompt.num_tokens - max(num_left, 1),
            eta_ms=round(left_s * 1e3, 1),
        )

    def close(self, num_delivered: int, *, is_finished: bool = False) -> None:
        """Safe to repeat. As `Attempt.close`."""
        self.prefill_is_over(is_taken_back=True)
        if self._followed is not None:
            self._followed.end()
        self._fleet.index.release(self._on_decode)
        self._fleet.loads.has_ended(self.attempt.request.request_id, self.placement.decode.epoch)
        self.attempt.close(num_delivered, is_finished=is_finished)
