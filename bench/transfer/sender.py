"""The sender of `bench.transfer`: a real one, and the limits it is compared with.

    python -m bench.transfer.sender NUM_BLOCKS PIECE_BYTES DEVICE

It prints its addresses as JSON, and ends with its stdin.

gRPC   KvTransfer       a prefill replica's service, over synthetic KV that is already computed
       /bench/Offer     num_blocks, receiver epoch -> transfer id
       /bench/Stream    num_chunks, chunk_bytes, how -> that many messages, all with the same bytes,
                           with or without a checksum of each
TCP    num_bytes, how   -> that many bytes: the same ones again and again, or those of the KV with
                           checksums
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc.aio
import torch
import uvloop

from baton.core.block_views import stretches
from baton.core.clock import monotonic
from baton.core.ids import Epoch, TransferId, new_epoch, new_transfer_id
from baton.core.kv_layout import KvLayout
from baton.core.kv_pool import Holder, HolderKind
from baton.core.owner_thread import OneThread
from baton.engine.blocks.block_pool import BlockPool
from baton.engine.memory.kv_cache import KvCache
from baton.kv_transfer.layouts.integrity import unit_checksums
from baton.kv_transfer.sending.outbox import Outbox
from baton.kv_transfer.sending.sender import Sender
from baton.kv_transfer.transport.control.servicer import KvTransferServicer
from baton.kv_transfer.transports import TransportParts, create_sending_halves
from baton.platform.machine.heap import keep_freed_memory
from baton.proto.channels import listen, new_server

LAYOUT = KvLayout(
    model_fingerprint=b"bench",
    dtype="bfloat16",
    num_layers=28,
    num_kv_heads=8,
    head_dim=128,
    block_size=16,
)
"""The KV layout of a model of about 7 billion parameters."""
LOOPBACK = "127.0.0.1"
TIME_LEFT_S = 60.0
CHUNK = memoryview(bytes(1 << 20))
WISH = struct.Struct("<Q?")
"""A request on the socket: how many bytes, and whether with checksums."""
CHECKED_BYTES = 4 << 20
"""Bytes whose checksums are computed in one call: with fewer or more it is slower."""
_SOURCE = Holder(HolderKind.REQUEST, "source")


def move_to_huge_pages(cache: KvCache) -> None:
    """Move all KV to huge pages at once; a replica does so gradually: see `HugeArena`."""
    if cache.huge is not None:
        cache.huge.look(lambda: False)


class BenchSender:
    def __init__(self, num_blocks: int, piece_bytes: int, device: str) -> None:
        cache = KvCache(LAYOUT, num_blocks + 1, device)
        for layer in cache.planes:
            layer.view(torch.int16).random_()
        move_to_huge_pages(cache)
        self.epoch = new_epoch()
        self._owner = OneThread()
        pool = BlockPool(cache)
        pool.reserve(_SOURCE, range(num_blocks * LAYOUT.block_size), b"")
        self._sender = Sender(pool, self.epoch)
        self._outbox = Outbox(self._sender, self._owner, max_piece_bytes=piece_bytes)
        parts = TransportParts(device=cache.arena.device)
        self._halves = create_sending_halves(parts, cache.arena)
        self.memory = stretches(cache.views(range(num_blocks), range(LAYOUT.num_layers)))
        """All KV, by plane."""

    async def serve(self) -> str:
        server = self._server = new_server()
        KvTransferServicer(self._outbox, self.epoch, self._halves).serve(server)
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Offer": grpc.unary_unary_rpc_method_handler(self._offer),
            "Stream": grpc.unary_stream_rpc_method_handler(_stream),
        }
        server.add_registered_method_handlers("bench", handlers)
        port = listen(server, f"{LOOPBACK}:0")
        await server.start()
        return f"{LOOPBACK}:{port}"

    async def _offer(self, request: bytes, context: Any) -> bytes:
        wanted = json.loads(request)
        transfer_id = new_transfer_id()
        await self._owner.call(
            lambda: self._publish(transfer_id, Epoch(wanted["receiver"]), wanted["num_blocks"])
        )
        return transfer_id.encode()

    def _publish(self, transfer_id: TransferId, receiver: Epoch, num_blocks: int) -> None:
        num_tokens = num_blocks * LAYOUT.block_size
        self._sender.offer(
            transfer_id,
            receiver,
            source=_SOURCE,
            num_tokens=num_tokens,
            time_left_s=TIME_LEFT_S,
            now=monotonic(),
        )
        self._sender.publish(transfer_id, num_tokens)
        self._sender.finish(transfer_id)


async def _stream(request: bytes, context: Any) -> AsyncIterator[bytes]:
    num_chunks, chunk_bytes, is_checked = json.loads(request)
    chunk = bytes(chunk_bytes)
    for _ in range(num_chunks):
        if is_checked:
            unit_checksums(chunk, LAYOUT.unit_bytes)
        yield chunk


def _serve_socket(door: socket.socket, memory: Sequence[memoryview]) -> None:
    """Serve plain bytes, to one client at a time."""
    while True:
        visitor, _ = door.accept()
        with visitor:
            while request := visitor.recv(WISH.size):
                num_bytes, is_checked = WISH.unpack(request)
                (_send_checked if is_checked else _send_plain)(visitor, num_bytes, memory)


def _send_plain(visitor: socket.socket, left: int, memory: Sequence[memoryview]) -> None:
    del memory
    while left:
        left -= visitor.send(CHUNK[: min(left, len(CHUNK))])


def _send_checked(visitor: socket.socket, left: int, memory: Sequence[memoryview]) -> None:
    for plane in memory:
        for start in range(0, min(left, len(plane)), CHECKED_BYTES):
            piece = plane[start : min(start + CHECKED_BYTES, left)]
            unit_checksums(piece, LAYOUT.unit_bytes)
            visitor.sendall(piece)
        left = max(0, left - len(plane))


async def _main(num_blocks: int, piece_bytes: int, device: str) -> None:
    keep_freed_memory()  # as a replica does
    sender = BenchSender(num_blocks, piece_bytes, device)
    door = socket.create_server((LOOPBACK, 0))
    threading.Thread(target=_serve_socket, args=(door, sender.memory), daemon=True).start()
    address = await sender.serve()
    told = {"address": address, "epoch": sender.epoch, "socket": door.getsockname()[1]}
    print(json.dumps(told), flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(_main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
