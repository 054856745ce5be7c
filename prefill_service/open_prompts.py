"""The prompts open on a prefill replica, from their admission until their transfers are over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from baton.core.errors import EngineFailed, InvalidRequest, Overloaded
from baton.core.messages import PrefillDone, PrefillGranted, PrefillProgress, PrefillRequest
from baton.engine.request.request import Request

Event = PrefillProgress | PrefillGranted | PrefillDone


@dataclass(slots=True)
class OpenPrompt:
    message: PrefillRequest
    request: Request
    events: asyncio.Queue[Event | Exception | None] = field(default_factory=asyncio.Queue)
    """None: the transfer is sealed or aborted."""
    is_computed: bool = False

    @property
    def num_queued_tokens(self) -> int:
        return 0 if self.is_computed else self.request.num_pending

    @property
    def num_computed_tokens(self) -> int:
        """Computed here, of a prompt whose first token is yet to come."""
        request = self.request
        return 0 if self.is_computed else max(0, request.num_computed - request.num_cached)


class OpenPrompts:
    """Belongs to one event loop."""

    def __init__(self, max_queued_tokens: int) -> None:
        self.max_queued_tokens = max_queued_tokens
        """0: nothing more is admitted."""
        self.is_idle = asyncio.Event()
        """Set while there is none."""
        self.is_idle.set()
        self._by_transfer: dict[str, OpenPrompt] = {}

    def __len__(self) -> int:
        return len(self._by_transfer)

    def __iter__(self) -> Iterator[OpenPrompt]:
        return iter(self._by_transfer.values())

    @property
    def num_queued_tokens(self) -> int:
        return sum(prompt.num_queued_tokens for prompt in self._by_transfer.values())

    def get(self, transfer_id: str) -> OpenPrompt | None:
        return self._by_transfer.get(transfer_id)

    def admit(self, message: PrefillRequest) -> OpenPrompt:
        """Raises Overloaded when too much is queued, InvalidRequest for a transfer that exists.

        A prompt that would be first in the queue is always admitted, however long it is: some
        replica must compute it, and at a decode replica it would delay more.
        """
        num_tokens, num_queued = len(message.prompt) + len(message.output), self.num_queued_tokens
        is_alone = not num_queued and self.max_queued_tokens > 0
        if not is_alone and num_queued + num_tokens > self.max_queued_tokens:
            raise Overloaded(
                f"{num_queued} tokens queued on this prefill replica; {num_tokens} more would pass "
                f"its limit of {self.max_queued_tokens}"
            )
        if message.transfer_id in self._by_transfer:
            raise InvalidRequest(f"transfer {message.transfer_id} exists", field="transfer_id")
        prompt = OpenPrompt(message, _request(message))
        self._by_transfer[message.transfer_id] = prompt
        self.is_idle.clear()
        return prompt

    def remove(self, prompt: OpenPrompt) -> None:
        del self._by_transfer[prompt.message.transfer_id]
        if not self._by_transfer:
            self.is_idle.set()

    def put_event(self, transfer_id: str, event: Event | Exception | None) -> None:
        """Nothing happens to a prompt that has left."""
        prompt = self._by_transfer.get(transfer_id)
        if prompt is not None:
            prompt.events.put_nowait(event)

    def report_progress(self) -> None:
        """To those that want it and whose first token is yet to come."""
        for prompt in self._by_transfer.values():
            if prompt.message.wants_progress and not prompt.is_computed:
                prompt.events.put_nowait(PrefillProgress())

    def fail_all(self, error: EngineFailed) -> None:
        for prompt in self._by_transfer.values():
            prompt.events.put_nowait(error)


def _request(message: PrefillRequest) -> Request:
    return Request(
        request_id=message.transfer_id,
        prompt=list(message.prompt),
        output=list(message.output),
        sampling=message.sampling,
        salt=message.salt,
        adapter=message.adapter,
        tenant=message.tenant,
        cache_points=message.cache_points,
        priority=message.priority,
        max_new_tokens=1,
    )
