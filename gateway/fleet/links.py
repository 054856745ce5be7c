"""The streams to all known replicas: one for work, and one for what each has cached.

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
from baton.gateway.fleet.decode_link import DecodeLink
from baton.gateway.fleet.demand import rounded
from baton.gateway.fleet.fleet_report import KvKnowledge
from baton.gateway.fleet.kv_watch import KvWatch, OnLearnt, Snapshots
from baton.gateway.fleet.opening_slots import OpeningSlots
from baton.gateway.fleet.prefill_link import PrefillLink
from baton.gateway.fleet.replica_link import Listener
from baton.proto import replica_pb2 as pb
from baton.proto.channels import Channels
from baton.router.cache.kv_index import KvIndex

INSPECT_TIMEOUT_S, AUDIT_TIMEOUT_S = 2.0, 5.0
AUDIT_S_PER_BLOCK = 5e-7
"""An audit looks at each block, for up to 50 ns of CPU, of which others may want their share."""
OTHERS_S = 0.25
"""Seconds to wait for the answers of other replicas that may have more of a stream than the one
that has answered."""
ALIVE_FOR_S = IDLE_HEARTBEAT_S + 2.5 * HEARTBEAT_S
"""Seconds that a replica counts as alive after its last word, which it says anew with every
heartbeat."""


class Links:
    def __init__(
        self,
        gateway_epoch: Epoch,
        index: KvIndex,
        channels: Channels,
        clock: Clock,
        is_starting: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_starting`: nothing is placed before more caches are known."""
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
        """Asked for a stream that another one had."""
        self._wanted = (0, 0)
        """Requests that wait here, and tokens: what all replicas have been told."""

    def __getitem__(self, epoch: Epoch) -> DecodeLink | PrefillLink:
        link = self.get(epoch)
        if link is None:
            raise KeyError(epoch)
        return link

    def get(self, epoch: Epoch) -> DecodeLink | PrefillLink | None:
        return self.decode.get(epoch) or self.prefill.get(epoch)

    @property
    def is_any_held_up(self) -> bool:
        """Whether one waits for its turn, to be connected to or to be asked what it has cached."""
        return bool(self._opening.num_waiting or self._snapshots.opening.num_waiting)

    @property
    def is_secured(self) -> bool:
        return self._channels.is_secured

    def meet(self, info: ReplicaInfo, listener: Listener, on_learnt: OnLearnt) -> None:
        """Open what is not open to it yet."""
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
        """Replicas that have said something of late."""
        since = self._clock() - ALIVE_FOR_S
        yield from (epoch for epoch, link in self.decode.items() if link.has_spoken(since))
        yield from (epoch for epoch, link in self.prefill.items() if link.has_spoken(since))

    def want(self, num_requests: int, num_prefill_tokens: int) -> None:
        """So many requests wait here for a place, and so many tokens for a prefill replica."""
        wanted = rounded(num_requests), rounded(num_prefill_tokens)
        if wanted != self._wanted:
            self._wanted = wanted
            for link in self.decode.values():
                self.ask(link)
            for prefill_link in self.prefill.values():
                self.ask(prefill_link)

    def ask(self, link: DecodeLink | PrefillLink) -> None:
        """Say on its stream, which may be new, what is wanted."""
        num_requests, num_prefill_tokens = self._wanted
        if isinstance(link, DecodeLink):
            link.demand.want(num_requests, 0)
        else:
            link.demand.want(0, num_prefill_tokens)

    async def take_stream(self, wanted: TakeStream) -> ParkedStream | None:
        """As far as any decode replica knows of it. What runs of it anywhere ends. Raises
        Unavailable if none has it, but one that may have it could not be asked.

        Once one has it, those that have yet to answer are waited for no longer than answers take:
        what they had more of is computed again.
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
        for asked in asking:  # those that are late end what runs of it there all the same
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
        """Ask every replica for its books, all at once. `with_audit`: after a look at each of its
        blocks, which takes longer."""
        watches = dict(self.watches)
        replies = await asyncio.gather(
            *(
                watch.inspect(
                    inspect_timeout_s(watch.num_blocks, with_audit=with_audit),
                    with_audit=with_audit,
                )
                for watch in watches.values()
            ),
            return_exceptions=True,
        )
        return {
            epoch: reply
            for epoch, reply in zip(watches, replies, strict=True)
            if not isinstance(reply, BaseException) or isinstance(reply, Exception)
        }

    def kv_knowledge(self) -> dict[Epoch, KvKnowledge]:
        """What the index knows of each replica's cache, and how well it could follow, by epoch."""
        return {
            epoch: KvKnowledge(
                num_blocks=self._index.num_blocks(epoch),
                num_events=watch.num_events,
                num_gaps=watch.num_gaps,
                num_resyncs=watch.num_resyncs,
                is_synced=watch.is_synced,
            )
            for epoch, watch in self.watches.items()
        }


def inspect_timeout_s(num_blocks: int, *, with_audit: bool) -> float:
    """The most seconds that a replica of so many blocks may take to show its books."""
    return AUDIT_TIMEOUT_S + num_blocks * AUDIT_S_PER_BLOCK if with_audit else INSPECT_TIMEOUT_S


async def _first_known(asking: set[asyncio.Task[ParkedStream | None]]) -> bool:
    """Return when one has it, or when all have answered: whether one has."""
    left = asking
    while left:
        done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        if any(_parked(asked) is not None for asked in done):
            return True
    return False


def _parked(asked: asyncio.Task[ParkedStream | None]) -> ParkedStream | None:
    """What it answered, if it did not fail."""
    return None if asked.cancelled() or asked.exception() is not None else asked.result()
