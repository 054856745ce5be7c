"""P's half of NIXL: registers the memory that D reads, and tells D where it is.

one rank         its arena                                    one agent
ranks on CPUs    what the lead has mapped of each             the lead's
ranks on GPUs    each its own arena, in its own process       one each: `RegisteredMemory`
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence

import msgspec
import torch
from msgspec import structs
from torch import Tensor

from baton.core.errors import TransportFailed
from baton.core.ids import Epoch
from baton.core.kv_arena import ArenaShare, KvArena
from baton.core.rank_memory import Introduction, OwnRows
from baton.kv_transfer.handoff.messages import OpenTransfer
from baton.kv_transfer.handoff.transport import LentPiece, PackedPiece
from baton.kv_transfer.transport.block_tickets import ticket_of
from baton.kv_transfer.transport.daemon import DaemonThread
from baton.kv_transfer.transport.nixl.arena import Arena, RankArena, Registered
from baton.kv_transfer.transport.nixl.buffers import bind_thread, place_of
from baton.kv_transfer.transport.nixl.rank_reads import RankReads
from baton.kv_transfer.transport.nixl.reads import Agent, CreateAgent, new_agent

log = logging.getLogger(__name__)


class NixlSending:
    max_piece_bytes = 0
    carry = None

    def __init__(
        self,
        arena: KvArena,
        create: CreateAgent = new_agent,
        *,
        is_on_device: bool | None = None,
    ) -> None:
        """`is_on_device`: whether pieces are summed up where they lie. None: on any device but a
        CPU."""
        is_elsewhere = torch.device(arena.device).type != "cpu"
        self.reads_in_place = is_elsewhere if is_on_device is None else is_on_device
        self._arena = arena
        self._create = create
        self._thread: DaemonThread | None = None
        self._introduction: asyncio.Future[bytes] | None = None
        self._agent: Agent | None = None

    async def pack(self, piece: LentPiece, request: OpenTransfer) -> PackedPiece:
        return PackedPiece(ticket=ticket_of(piece).pack())

    async def meet(self, receiver_epoch: Epoch, payload: bytes) -> bytes:
        if self._introduction is None:
            self._thread = DaemonThread("nixl registers")
            self._introduction = self._thread.call(self._introduce)
        try:
            return await asyncio.shield(self._introduction)
        except Exception as error:
            raise TransportFailed(f"NIXL does not work at the sender: {error}") from error

    async def close(self) -> None:
        self._agent = None  # unregisters the arena
        if self._thread is not None:
            self._thread.stop()

    def _introduce(self) -> bytes:
        """On the thread: to start UCX and register much memory takes a while."""
        arena = self._arena
        if not arena.shares:
            self._agent, own = _registered(self._create, arena.planes, arena.device)
            return msgspec.msgpack.encode(_arena(arena, own, [], []))
        mapped = [share for share in arena.shares if not share.introduction]
        planes = [plane for share in mapped for plane in share.planes]
        self._agent, own = _registered(self._create, planes, arena.device)
        agents, ranks, addresses = [own.agent], [], iter(own.planes)
        for share in arena.shares:
            if share.introduction:
                of_rank = msgspec.msgpack.decode(share.introduction, type=Registered)
                ranks.append(_rank_arena(share, of_rank, len(agents)))
                agents.append(of_rank.agent)
            else:
                of_rank = structs.replace(own, planes=[next(addresses) for _ in share.planes])
                ranks.append(_rank_arena(share, of_rank, 0))
        nowhere = structs.replace(own, agent=b"", planes=[])
        return msgspec.msgpack.encode(_arena(arena, nowhere, agents, ranks))


class RegisteredMemory:
    """The memory of a rank that follows a lead, registered in its own process for as long as this
    lives, and what the rank reads for itself."""

    def __init__(self, create: CreateAgent = new_agent) -> None:
        self._create = create
        self._agent: Agent | None = None
        self._arena: KvArena | None = None
        """Kept: what is registered must stay there."""

    def introduce(self, arena: KvArena, rows: OwnRows) -> Introduction:
        """The word is empty where NIXL does not work: then this replica's KV takes other ways."""
        try:
            self._agent, registered = _registered(self._create, arena.planes, arena.device)
        except Exception:
            log.warning("NIXL does not work at this rank", exc_info=True)
            return Introduction(b"", {})
        self._arena = arena
        reads = RankReads(rows, self._create, torch.device(arena.device))
        return Introduction(msgspec.msgpack.encode(registered), reads.answers)


def _registered(
    create: CreateAgent, planes: Sequence[Tensor], on_device: str
) -> tuple[Agent, Registered]:
    """An agent that others may read these planes through, while it lives."""
    device = torch.device(on_device)
    bind_thread(device)
    mem_type, index = place_of(device)
    agent = create(f"baton-{secrets.token_hex(8)}")
    stretches = [(plane.data_ptr(), plane.nbytes, index, "") for plane in planes]
    agent.register_memory(stretches, mem_type)
    addresses = [plane.data_ptr() for plane in planes]
    return agent, Registered(agent.get_agent_metadata(), addresses, mem_type, index)


def _rank_arena(share: ArenaShare, of_share: Registered, agent: int) -> RankArena:
    return RankArena(
        agent=agent,
        planes=of_share.planes,
        block_bytes=list(share.block_bytes),
        starts=list(share.starts),
        mem_type=of_share.mem_type,
        device=of_share.device,
        first_plane=share.first_plane,
    )


def _arena(arena: KvArena, own: Registered, agents: list[bytes], ranks: list[RankArena]) -> Arena:
    return Arena(
        agent=own.agent,
        planes=own.planes,
        num_blocks=arena.num_blocks,
        block_bytes=list(arena.block_bytes),
        mem_type=own.mem_type,
        device=own.device,
        agents=agents,
        ranks=ranks,
    )
