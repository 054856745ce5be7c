"""Two replicas, of which one lends the other what it has cached, and no wire between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

from tests.kv_transfer.replicas import PROMPT, TRANSFER, DecodeReplica, PrefillReplica
from tests.kv_transfer.world import Alter, World, unaltered

from baton.core.errors import BatonError
from baton.core.ids import TransferId
from baton.core.messages import PullRequest
from baton.kv_transfer.pulling.lending import Lender
from baton.kv_transfer.pulling.prefix_fetch import PrefixFetcher, PrefixOffer
from baton.kv_transfer.receiving.receiver import ReceiverConfig

SALT = b""
NUM_FULL = 5
"""Full blocks of the prompt."""
BLOCK = 4


class LocalSource:
    """The other replica of a `World`, asked without a wire."""

    name = "peer"

    def __init__(self, world: World, failure: BatonError | None = None) -> None:
        self.failure = failure
        self.num_closed = 0
        self._world = world
        self._lender = Lender(
            world.prefill.pool, world.prefill.sender, world.on_p, clock=world.decode.clock
        )
        world.prefill.on_ended = self._lender.ended

    @property
    def lender(self) -> Lender:
        return self._lender

    def request(
        self,
        tokens: Sequence[int],
        num_held: int = 0,
        *,
        transfer_id: TransferId = TRANSFER,
        salt: bytes = SALT,
    ) -> PullRequest:
        return PullRequest(
            transfer_id=transfer_id,
            receiver_epoch=self._world.decode.receiver.epoch,
            layout=self._world.decode.layout,
            tokens=tuple(tokens),
            salt=salt,
            num_held=num_held,
            time_left_ms=60_000,
        )

    @asynccontextmanager
    async def offer(
        self, transfer_id: TransferId, tokens: Sequence[int], salt: bytes, num_held: int
    ) -> AsyncIterator[PrefixOffer | None]:
        if self.failure is not None:
            raise self.failure
        request = self.request(tokens, num_held, transfer_id=transfer_id, salt=salt)
        async with aclosing(self._lender.lend(request)) as loan:
            offered = await anext(loan, None)
            yield (
                None
                if offered is None
                else PrefixOffer(
                    sender_epoch=offered.sender_epoch,
                    layout=offered.layout,
                    num_tokens=offered.num_tokens,
                    head_runs=offered.head_runs,
                    address=self._world.address,
                )
            )
            if offered is not None:
                await anext(loan, None)
        self.num_closed += 1


@asynccontextmanager
async def peers(
    alter: Alter = unaltered, num_ranks: int = 1
) -> AsyncIterator[tuple[World, PrefixFetcher]]:
    split = ReceiverConfig(min_stream_bytes=1)
    prefill, decode = (
        PrefillReplica(num_ranks=num_ranks),
        DecodeReplica(num_ranks=num_ranks, config=split),
    )
    world = World("memory", alter, prefill, decode)
    await world.start_serving()
    fetcher = PrefixFetcher(
        pool=world.decode.pool,
        owner=world.on_d,
        receiver=world.decode.receiver,
        fetcher=world.fetcher,
        timeout_s=60.0,
        clock=world.decode.clock,
    )
    try:
        yield world, fetcher
    finally:
        await world.fetcher.close()
        await world.stop_serving()
        world.on_p.stop()
        world.on_d.stop()


async def fill_cache(world: World, tokens: Sequence[int] = PROMPT, name: str = "before") -> None:
    """P computes a prompt and forgets the request: its full blocks stay in the cache."""
    prefill, transfer_id = world.prefill, TransferId(name)

    def fill() -> None:
        assert prefill.grant(world.decode.receiver.epoch, transfer_id, tuple(tokens))
        prefill.compute(transfer_id)
        prefill.finish(transfer_id)
        prefill.sender.abort(transfer_id, "only the cache was wanted")

    await world.on_p.call(fill)


async def audited(world: World) -> None:
    """Nothing is held on either side, once threads that read ahead have ended as well."""
    for owner, audit in ((world.on_p, world.prefill.audit), (world.on_d, world.decode.audit)):
        async with asyncio.timeout(60):
            while (report := await owner.call(audit)).leased or report.quarantined:
                assert report.violations == ()
                await asyncio.sleep(0.001)
        assert report.violations == ()
        assert report.live == 0
