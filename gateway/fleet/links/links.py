"""The streams to all known replicas: one for requests, and one for cache events.

DecodeLink    one a decode replica: requests and tokens
PrefillLink   one a prefill replica: its credits
KvWatch       one a replica: its prefix cache, into KvIndex
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from baton.core.clock import Clock
from baton.core.errors import Unavailable
from baton.core.ids import Epoch
from baton.core.messages import ParkedStream
from baton.core.parking import TakeStream
from baton.core.replicas import HEARTBEAT_S, IDLE_HEARTBEAT_S, ReplicaInfo, Role
from baton.gateway.fleet.links.decode_link import DecodeLink
from baton.gateway.fleet.links.demand import rounded
from baton.gateway.fleet.links.kv_watch import KvKnowledge, KvWatch, OnLearnt, Snapshots
from baton.gateway.fleet.links.opening_slots import OpeningSlots
from baton.gateway.fleet.links.prefill_link import PrefillLink
from baton.gateway.fleet.links.replica_calls import ReplicaCalls
from baton.gateway.fleet.links.replica_link import Listener
from baton.proto import replica_pb2 as pb
from baton.proto.channels import Channels
from baton.router.cache.kv_index import KvIndex

INSPECT_TIMEOUT_S, AUDIT_TIMEOUT_S = 2.0, 5.0
AUDIT_S_PER_BLOCK = 5e-7
"""An audit takes up to 50 ns of CPU per block, on a machine that may be busy."""
OTHERS_S = 0.25
"""Seconds to wait, after one replica has a stream, for others that may have more of it."""
ALIVE_FOR_S = IDLE_HEARTBEAT_S + 2.5 * HEARTBEAT_S
"""Seconds that a replica counts as alive after its last report, which every heartbeat repeats."""


class Links:
    def __init__(
        self,
        gateway_epoch: Epoch,
        index: KvIndex,
        channels: Channels,
        clock: Clock,
        is_starting: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_starting`: whether placements still wait for more caches to be known."""
        self.decode: dict[Epoch, DecodeLink] = {}
        self.prefill: dict[Epoch, PrefillLink] = {}
        self.watches: dict[Epoch, KvWatch] = {}
        self.has_met_decode = False
        self._gateway_epoch = gateway_epoch
        self._index = index
        self._channels = channels
        self._clock = clock
        self._snapshots = Snapshots()
        self._opening = OpeningSlots(behind=self._snapshots.opening, is_held_back=is_starting)
        self._late: set[asyncio.Task[ParkedStream | None]] = set()
        """Queries still running after another replica had the stream."""
        self._wanted = (0, 0)
        """Waiting requests and tokens, as last reported to all replicas."""

    def __getitem__(self, epoch: Epoch) -> DecodeLink | PrefillLink:
        link = self.get(epoch)
        if link is None:
            raise KeyError(epoch)
        return link

    def get(self, epoch: Epoch) -> DecodeLink | PrefillLink | None:
        return self.decode.get(epoch) or self.prefill.get(epoch)

    def calls(self, epoch: Epoch) -> ReplicaCalls:
        return ReplicaCalls(self[epoch].channel, epoch)

    @property
    def is_any_held_up(self) -> bool:
        """Whether a replica waits for its turn to be connected, or to send its snapshot."""
        return bool(self._opening.num_waiting or self._snapshots.opening.num_waiting)

    @property
    def is_secured(self) -> bool:
        return self._channels.is_secured

    def meet(self, info: ReplicaInfo, listener: Listener, on_learnt: OnLearnt) -> None:
        """Open the streams to a replica that are not open yet."""
        epoch = info.epoch
        ours = (info, self._gateway_epoch, listener, self._channels, self._clock, self._opening)
        if info.role is Role.PREFILL:
            if epoch not in self.prefill:
                self.prefill[epoch] = PrefillLink(*ours)
        elif epoch not in self.decode:
            self.decode[epoch] = DecodeLink(*ours)
            self.has_met_decode = True
        else:
            self.decode[epoch].info = info
        if epoch not in self.watches:
            link = self[epoch]
            self.watches[epoch] = KvWatch(
                info,
                self._index,
                link.channel,
                on_learnt,
                link.until_connected,
                self._snapshots,
                is_secured=self.is_secured,
            )

    async def close_watch(self, epoch: Epoch) -> None:
        watch = self.watches.pop(epoch, None)
        if watch is not None:
            await watch.close()

    async def close_prefill(self, epoch: Epoch) -> None:
        link = self.prefill.pop(epoch, None)
        if link is not None:
            await link.close()

    async def close(self) -> None:
        for asked in self._late:
            asked.cancel()
        for closing in (self.watches, self.decode, self.prefill):
            for stream in closing.values():
                await stream.close()
            closing.clear()

    def alive(self) -> Iterator[Epoch]:
        """Replicas that have reported recently."""
        since = self._clock() - ALIVE_FOR_S
        yield from (epoch for epoch, link in self.decode.items() if link.has_spoken(since))
        yield from (epoch for epoch, link in self.prefill.items() if link.has_spoken(since))

    def want(self, num_requests: int, num_prefill_tokens: int) -> None:
        """Report the requests that wait here, and the prompt tokens that wait for a prefill
        replica."""
        wanted = rounded(num_requests), rounded(num_prefill_tokens)
        if wanted != self._wanted:
            self._wanted = wanted
            for link in self.decode.values():
                self.ask(link)
            for prefill_link in self.prefill.values():
                self.ask(prefill_link)

    def ask(self, link: DecodeLink | PrefillLink) -> None:
        """Report the demand on a replica's stream, which may be new."""
        num_requests, num_prefill_tokens = self._wanted
        if isinstance(link, DecodeLink):
            link.demand.want(num_requests, 0)
        else:
            link.demand.want(0, num_prefill_tokens)

    async def take_stream(self, wanted: TakeStream) -> ParkedStream | None:
        """Take the parked stream from the decode replica that has most of it; its request ends
        everywhere. Raises Unavailable if none has it, but one that may have it could not be asked.
        Once one has it, the others have OTHERS_S to answer; tokens that only they had are computed
        again.
        """
        links = tuple(self.decode.values())
        if not links:
            raise Unavailable("no decode replica is known here yet that could be asked; try again")
        asking = {asyncio.create_task(link.take_stream(wanted)) for link in links}
        try:
            if await _first_known(asking):
                await asyncio.wait(asking, timeout=OTHERS_S)
        except BaseException:
            for asked in asking:
                asked.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            raise
        for asked in asking:  # late replicas still end the request there
            self._late.add(asked)
            asked.add_done_callback(self._forget_late)
        answers = [asked for asked in asking if asked.done()]
        failures = [error for asked in answers if (error := asked.exception()) is not None]
        found = [parked for asked in answers if (parked := _parked(asked)) is not None]
        if failures and not found:
            raise failures[0]
        return max(found, key=lambda parked: len(parked.request.output), default=None)

    def _forget_late(self, asked: asyncio.Task[ParkedStream | None]) -> None:
        self._late.discard(asked)
        if not asked.cancelled():
            asked.exception()

    def leave(self) -> None:
        for link in self.decode.values():
            link.is_leaving = True

    async def inspect(
        self, *, with_audit: bool = False
    ) -> dict[Epoch, pb.InspectReply | Exception]:
        """Ask all replicas for their accounts, concurrently. `with_audit`: each checks all of its
        blocks first, which takes longer."""
        epochs = tuple(self.watches)
        replies = await asyncio.gather(
            *(
                self.calls(epoch).inspect(
                    inspect_timeout_s(self[epoch].info.num_blocks, with_audit=with_audit),
                    with_audit=with_audit,
                )
                for epoch in epochs
            ),
            return_exceptions=True,
        )
        return {
            epoch: reply
            for epoch, reply in zip(epochs, replies, strict=True)
            if not isinstance(reply, BaseException) or isinstance(reply, Exception)
        }

    def kv_knowledge(self) -> dict[Epoch, KvKnowledge]:
        """How well this gateway follows each replica's cache."""
        return {epoch: watch.knowledge for epoch, watch in self.watches.items()}


def inspect_timeout_s(num_blocks: int, *, with_audit: bool) -> float:
    """The most seconds that a replica of `num_blocks` may take to report its accounts."""
    return AUDIT_TIMEOUT_S + num_blocks * AUDIT_S_PER_BLOCK if with_audit else INSPECT_TIMEOUT_S


async def _first_known(asking: set[asyncio.Task[ParkedStream | None]]) -> bool:
    """Return when one has it, or when all have answered; whether one has it."""
    left = asking
    while left:
        done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        if any(_parked(asked) is not None for asked in done):
            return True
    return False


def _parked(asked: asyncio.Task[ParkedStream | None]) -> ParkedStream | None:
    """The replica's answer, if it did not fail."""
    return None if asked.cancelled() or asked.exception() is not None else asked.result()
