"""Telling each P how a transfer ended: in the background, in a bounded number of attempts.

Whatever P answers, D has verified the bytes or given them up. If P cannot be told, its lease
expires.
"""

from __future__ import annotations

import asyncio

from baton.core.errors import TransferCut, TransferError
from baton.kv_transfer.handoff.messages import Outcome, SettleTransfer
from baton.kv_transfer.handoff.reservation import Reservation
from baton.kv_transfer.handoff.transport import Transport


class Settling:
    """Belongs to one event loop."""

    def __init__(
        self, transport: Transport, *, max_attempts: int, timeout_s: float, delay_s: float
    ) -> None:
        """`timeout_s` limits one attempt; `delay_s` before the second doubles each time."""
        self._transport = transport
        self._max_attempts = max_attempts
        self._timeout_s = timeout_s
        self._delay_s = delay_s
        self._telling: set[asyncio.Task[None]] = set()

    def tell(self, lease: Reservation, outcome: Outcome) -> None:
        """Tell all its sources."""
        for source in {stream.source for stream in lease.streams}:
            request = SettleTransfer(
                transfer_id=lease.transfer_id,
                sender_epoch=source.epoch,
                receiver_epoch=lease.receiver_epoch,
                outcome=outcome,
            )
            task = asyncio.ensure_future(self._settle(source.address, request))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def done(self) -> None:
        """Return when every P has been told, or cannot be."""
        while self._telling:
            await asyncio.wait(self._telling)

    async def _settle(self, address: str, request: SettleTransfer) -> None:
        for attempt in range(self._max_attempts):
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._transport.settle(address, request)
                return
            except (TransferCut, TimeoutError):
                await asyncio.sleep(self._delay_s * 2**attempt)
            except TransferError:
                return  # another incarnation, say: it holds nothing of ours
