"""What this replica's tiers hold of a prompt is brought in while a prefill replica is asked.

    ask P ------> granted --> wait for it --> reserve blocks: those it brought need not be sent
      `-- swap in, let go ------'

P does not wait: it computes from its grant on. D does not wait long: the tiers have a deadline.
Once let go the blocks are the most recently used of the prefix cache, and shared a moment later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from baton.decode_service.generating import Generating
from baton.kv_transfer.exchange import KvExchange


@asynccontextmanager
async def reading_ahead(kv: KvExchange, generating: Generating) -> AsyncIterator[None]:
    """Within the context `generating.read_ahead` runs, where there is anything to read."""
    if kv.tiers is None or not generating.message.prefill:
        yield
        return
    generating.read_ahead = asyncio.create_task(_swap_in(kv, generating))
    try:
        yield
    finally:
        generating.read_ahead.cancel()
        await asyncio.gather(generating.read_ahead, return_exceptions=True)


async def _swap_in(kv: KvExchange, generating: Generating) -> None:
    message = generating.message
    known = generating.known_tokens
    async with kv.prefix_of(known, message.salt, None, tenant=message.tenant) as brought_in:
        generating.num_pulled += brought_in.num_new
        if brought_in.note:
            generating.notes.append(brought_in.note)
