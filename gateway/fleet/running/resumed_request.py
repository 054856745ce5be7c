"""A generation that began at another gateway: its known tokens, then the rest, if any."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from baton.core.messages import ParkedStream, Receipt, TokenUpdate
from baton.core.wording import count_of
from baton.gateway.fleet.running.running_request import RunningRequest


class ResumedRequest:
    """`rest` is None if the generation had ended."""

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
        """The receipt; its cached tokens are those of the first replica."""
        before = self._parked.receipt
        if self._rest is None:
            return before
        now = self._rest.receipt
        num_tokens = len(self._parked.request.output)
        note = f"went on at another gateway after {count_of(num_tokens, 'token')}"
        return replace(
            now,
            cached_tokens=before.cached_tokens,
            cache_write_tokens=before.cache_write_tokens,
            computed_tokens=before.computed_tokens + now.computed_tokens,
            output_tokens=before.output_tokens + now.output_tokens,
            notes=(*before.notes, note, *now.notes),
        )

    async def stop(self, num_delivered: int, *, is_finished: bool = False) -> None:
        if self._rest is not None:
            num_of_rest = max(0, num_delivered - len(self._parked.request.output))
            await self._rest.stop(num_of_rest, is_finished=is_finished)
