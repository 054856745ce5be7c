"""The receiver of `bench.transfer`: a decode replica's fetcher, and the limits beside it."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from baton.core.clock import monotonic
from baton.core.ids import Epoch, TransferId, new_epoch
from baton.core.owner_thread import OneThread
from baton.engine.blocks.block_pool import BlockPool
from baton.engine.memory.kv_cache import KvCache
from baton.kv_transfer.handoff.reservation import KvSource, WantedKv
from baton.kv_transfer.layouts.integrity import (
    checksums_of,
    checksums_on_device,
    unit_checksums,
)
from baton.kv_transfer.receiving.fetch import Fetcher
from baton.kv_transfer.receiving.receiver import Receiver, ReceiverConfig
from baton.kv_transfer.transports import TransportParts, Transports
from baton.proto.channels import Channels
from bench.transfer.sender import (
    CHECKED_BYTES,
    LAYOUT,
    LOOPBACK,
    TIME_LEFT_S,
    WISH,
    move_to_huge_pages,
)


class BenchReceiver:
    """The receiver; also starts and ends its sender."""

    def __init__(self, num_blocks: int, piece_bytes: int, device: str = "cpu") -> None:
        self.epoch = new_epoch()
        self._num_blocks, self._piece_bytes = num_blocks, piece_bytes
        self._device = device
        self._cache = KvCache(LAYOUT, num_blocks + 1, device)
        for plane in self._cache.planes:
            plane.fill_(1.0)  # so that no page is touched for the first time while it is measured
        move_to_huge_pages(self._cache)
        self._pool = BlockPool(self._cache)
        self._owner = OneThread()
        self._receiver = Receiver(self._pool, self.epoch, ReceiverConfig(max_leased_fraction=1.0))
        self._channels = Channels()
        parts = TransportParts(channels=self._channels, device=self._cache.arena.device)
        self._transports = Transports(parts)
        self._fetchers: dict[str, Fetcher] = {}

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "bench.transfer.sender",
            str(self._num_blocks),
            str(self._piece_bytes),
            self._device,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        told = json.loads(await self._process.stdout.readline())
        self._address, self._sender = told["address"], Epoch(told["epoch"])
        self._socket = socket.create_connection((LOOPBACK, told["socket"]))
        self._buffer = np.ones(self._num_blocks * LAYOUT.block_bytes, dtype=np.uint8)
        self._source = np.ones_like(self._buffer)
        on_device = [
            torch.from_numpy(each).to(self._device) for each in (self._buffer, self._source)
        ]
        self._copy, self._copied = on_device
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()
        for fetcher in self._fetchers.values():
            await fetcher.close()
        await self._transports.close()
        await self._channels.close()
        self._process.kill()
        await self._process.wait()

    async def handoff(self, transport: str, num_blocks: int) -> float:
        """Seconds of a transfer of computed KV, from opening it until it is sealed."""
        transfer_id = TransferId((await self._ask("Offer", self._wish(num_blocks))).decode())
        wanted = WantedKv(
            transfer_id=transfer_id,
            sources=(KvSource(epoch=self._sender, address=self._address, layout=LAYOUT),),
            tokens=range(num_blocks * LAYOUT.block_size),
            salt=transfer_id.encode(),
            time_left_s=TIME_LEFT_S,
        )
        reservation = await self._owner.call(lambda: self._receiver.reserve(wanted, monotonic()))
        if reservation is None:
            raise RuntimeError(f"no room for {num_blocks} blocks")
        report = await self._fetcher(transport).fetch(reservation)
        if report.transport != transport or report.num_reopened:
            raise RuntimeError(f"not an undisturbed transfer by {transport}: {report}")
        await self._owner.call(lambda: self._pool.release(self._receiver.adopt(transfer_id)))
        return report.transfer_ms / 1e3

    def memcpy(self, num_bytes: int) -> float:
        """Seconds of one copy between buffers that were touched before, on the KV's device."""
        started = time.perf_counter()
        if self._copy.is_cuda:
            self._copy[:num_bytes].copy_(self._copied[:num_bytes])
            torch.cuda.synchronize(self._copy.device)
        else:
            self._buffer[:num_bytes] = self._source[:num_bytes]
        return time.perf_counter() - started

    def checksums(self, num_blocks: int) -> float:
        """Seconds to checksum so many blocks on one thread, piece by piece as the sender does."""
        at_once = max(1, self._piece_bytes // LAYOUT.layer_block_bytes)
        started = time.perf_counter()
        if self._copy.is_cuda:
            rows = self._copy[: num_blocks * LAYOUT.block_bytes].view(num_blocks, -1)
            checksums_on_device(rows, LAYOUT.unit_bytes)
            return time.perf_counter() - started
        for layer in range(LAYOUT.num_layers):
            for first in range(0, num_blocks, at_once):
                blocks = range(first, min(first + at_once, num_blocks))
                checksums_of(self._cache.views(blocks, range(layer, layer + 1)), LAYOUT.unit_bytes)
        return time.perf_counter() - started

    def plain_socket(self, num_bytes: int) -> float:
        started = time.perf_counter()
        self._socket.sendall(WISH.pack(num_bytes, False))
        at, buffer = 0, self._buffer.data
        while at < num_bytes:
            at += self._socket.recv_into(buffer[at:num_bytes])
        return time.perf_counter() - started

    def checked_socket(self, num_bytes: int) -> float:
        """As `plain_socket`, with a checksum on each side, by one thread each."""
        started = time.perf_counter()
        self._socket.sendall(WISH.pack(num_bytes, True))
        at, buffer = 0, self._buffer.data
        while at < num_bytes:
            begin, stop = at, min(at + CHECKED_BYTES, num_bytes)
            while at < stop:
                at += self._socket.recv_into(buffer[at:stop], 0, socket.MSG_WAITALL)
            unit_checksums(buffer[begin:stop], LAYOUT.unit_bytes)
        return time.perf_counter() - started

    async def bare_stream(self, num_bytes: int, *, is_checked: bool = False) -> float:
        """Seconds to receive gRPC messages of a piece's size, which are dropped.

        `is_checked`: with a checksum on each side, computed on its event loop.
        """
        size = min(self._piece_bytes, num_bytes)
        size -= size % LAYOUT.unit_bytes
        request = json.dumps([-(-num_bytes // size), size, is_checked]).encode()
        started = time.perf_counter()
        stream: Any = self._channels.to(self._address).unary_stream("/bench/Stream")
        async for message in stream(request):
            if is_checked:
                unit_checksums(message, LAYOUT.unit_bytes)
        return time.perf_counter() - started

    def _wish(self, num_blocks: int) -> bytes:
        return json.dumps({"receiver": self.epoch, "num_blocks": num_blocks}).encode()

    async def _ask(self, method: str, request: bytes) -> bytes:
        call: Any = self._channels.to(self._address).unary_unary(f"/bench/{method}")
        reply: bytes = await call(request)
        return reply

    def _fetcher(self, transport: str) -> Fetcher:
        fetcher = self._fetchers.get(transport)
        if fetcher is None:
            way = self._transports.get(transport)
            fetcher = self._fetchers[transport] = Fetcher(self._receiver, self._owner, way)
        return fetcher
