"""A generation that began at another gateway: what is known of it, then the rest, if any."""

from __future__ import annotations

from collections.abc import AsyncIterator

from baton.core.messages import ParkedStream, Receipt, TokenUpdate
from baton.gateway.fleet.running_request import RunningRequest


class ResumedRequest:
    """`rest` is None if it was at its end."""

    def __init__(self, parked: ParkedStream, rest: RunningRequest | None) -> None:
        self._parked = parked
        self._rest = rest

    async def __aiter__(self) -> AsyncIterator[TokenUpdate]:
        known = self._parked.request
        if known.output or self._rest is None:
            yield TokenUpdate(
                request_id=known.request_id,
                attempt=known.attempt,
                tokens=known.output,
                logprobs=self._parked.logprobs,
                finish_reason=self._parked.finish_reason,
            )
        if self._rest is not None:
            async for update in self._rest:
                yield update

    @property
    def receipt(self) -> Receipt:
        """Of what was computed for this gateway."""
        if self._rest is not None:
            return self._rest.receipt
        known = self._parked.request
        return Receipt(prompt_tokens=len(known.prompt), output_tokens=len(known.output))

    async def stop(self, num_delivered: int) -> None:
        if self._rest is not None:
            await self._rest.stop(max(0, num_delivered - len(self._parked.request.output)))
