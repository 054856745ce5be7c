"""The limit of the transport over Gloo: bare send and recv of torch.distributed, two processes.

    python -m bench.transfer.gloo_limit [--mib 256] [--chunk-kib 1024] [--depth 1 16] [--checked]

`depth` operations are posted before the first is awaited: 1 is a plain loop, 16 is what the
transport does. Nothing is copied or announced: each side reuses its buffers. Checked, each side
computes the checksum of a buffer before it is sent, or after it was received.
"""

from __future__ import annotations

import multiprocessing
import secrets
import statistics
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection

import torch
from torch import Tensor
from torch.distributed import Work

from baton.kv_transfer.layouts.integrity import unit_checksums
from baton.kv_transfer.transport.addresses import listen
from baton.kv_transfer.transport.collective.joint import (
    PairAddress,
    join_as_receiver,
    join_as_sender,
)
from baton.kv_transfer.transport.collective.staging import HostStaging
from bench.harness.command_line import benchmark_parser
from bench.harness.report import surroundings, table
from bench.transfer.sender import LAYOUT

LOOPBACK = "127.0.0.1"
MIB = 1 << 20


def sum_up(buffer: Tensor) -> None:
    unit_checksums(buffer.numpy().data, LAYOUT.unit_bytes)


def leave_alone(buffer: Tensor) -> None:
    """No checksum."""


class GlooLimit:
    """Two connected processes: the other sends, this one receives and measures."""

    def __init__(self, *, chunk_bytes: int = MIB, depth: int = 1) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        args = (theirs, chunk_bytes, depth)
        self._process = spawn.Process(target=_send_on_request, args=args, daemon=True)
        self._process.start()
        group = join_as_receiver(self._pipe.recv())
        self._loop = _Loop(partial(HostStaging().receive, group.ranks), chunk_bytes, depth)

    def seconds(self, num_bytes: int, *, is_checked: bool = False) -> float:
        """Seconds for so many bytes, from the request until the last has arrived."""
        started = time.perf_counter()
        self._pipe.send((num_bytes, is_checked))
        self._loop.run(num_bytes, after=sum_up if is_checked else leave_alone)
        return time.perf_counter() - started

    def close(self) -> None:
        self._pipe.send((0, False))
        self._process.join()


class _Loop:
    """One side's operations, `depth` of them posted before the first is awaited."""

    def __init__(self, post: Callable[[Tensor], Work], chunk_bytes: int, depth: int) -> None:
        self._post = post
        self._chunk_bytes = chunk_bytes
        self._buffers = [torch.ones(chunk_bytes, dtype=torch.uint8) for _ in range(depth)]

    def run(
        self,
        num_bytes: int,
        *,
        before: Callable[[Tensor], None] = leave_alone,
        after: Callable[[Tensor], None] = leave_alone,
    ) -> None:
        """Call `before` with each buffer before it is posted, `after` once it is done."""
        posted: deque[tuple[Work, Tensor]] = deque()

        def wait_for_one() -> None:
            work, buffer = posted.popleft()
            work.wait()
            after(buffer)

        for number in range(max(1, num_bytes // self._chunk_bytes)):
            if len(posted) == len(self._buffers):
                wait_for_one()
            buffer = self._buffers[number % len(self._buffers)]
            before(buffer)
            posted.append((self._post(buffer), buffer))
        while posted:
            wait_for_one()


def _send_on_request(pipe: Connection, chunk_bytes: int, depth: int) -> None:
    listener = listen(LOOPBACK)
    port: int = listener.getsockname()[1]
    joint = PairAddress(backend="gloo", key=secrets.token_hex(8), host=LOOPBACK, port=port)
    pipe.send(joint)
    group = join_as_sender(joint, listener)
    loop = _Loop(partial(HostStaging().send, group.ranks), chunk_bytes, depth)
    while (request := pipe.recv())[0]:
        num_bytes, is_checked = request
        loop.run(num_bytes, before=sum_up if is_checked else leave_alone)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--chunk-kib", type=int, default=1024)
    parser.add_argument("--depth", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--checked", action="store_true", help="each side sums all bytes up once")
    args = parser.parse_args()
    limits = {
        depth: GlooLimit(chunk_bytes=args.chunk_kib << 10, depth=depth) for depth in args.depth
    }
    num_bytes = args.mib * MIB
    seconds = {
        depth: [limit.seconds(num_bytes, is_checked=args.checked) for _ in range(args.rounds)]
        for depth, limit in limits.items()
    }
    for limit in limits.values():
        limit.close()
    print(surroundings())
    rows = [
        (str(depth), num_bytes / statistics.median(times) / 1e9, num_bytes / min(times) / 1e9)
        for depth, times in seconds.items()
    ]
    print(table(("depth", "GB/s, median", "GB/s, best"), rows))


if __name__ == "__main__":
    main()
