"""Handoff times by transport, beside the limits of the machine, measured in the same run.

Two processes: a sender's outbox and a receiver's fetcher, as in replicas, over synthetic KV that is
already computed; a handoff lasts from opening the transfer until the receiver has sealed it. Event
loops are uvloop's, as in Ray's workers, and KV is on pages of 2 MB, as in replicas. The rounds of
all transports and of their limits take turns; each number is the median of its rounds, some beside
the least: on a shared machine medians include the load of other processes.

    limit      shm   one memcpy of as many bytes, by one thread
               nixl  the same, on the device that holds the KV
               grpc  a bare gRPC stream of messages of a piece's size
               tcp   a plain TCP socket
               gloo  send and recv of torch.distributed
    checked    tcp, grpc, gloo   the same limit with a checksum of all bytes on both sides, which
                     a thread computes between moving them: about what two cores allow

    python -m bench.transfer [--transports shm tcp grpc gloo] [--sizes 1 256] [--timeline OUT.png]
    python -m bench.transfer --transports nixl grpc --device cuda
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import uvloop

from baton.kv_transfer.sending.outbox import MAX_PIECE_BYTES
from baton.platform.machine.heap import keep_freed_memory
from bench.harness.command_line import benchmark_parser
from bench.harness.report import surroundings, table
from bench.transfer.gloo_limit import GlooLimit
from bench.transfer.receiver import BenchReceiver
from bench.transfer.sender import LAYOUT
from bench.transfer.timeline import draw, record

MIB = 1 << 20
TRANSPORTS = ("shm", "tcp", "grpc", "gloo")
SIZES = (1, 16, 256)
LIMIT_OF = {
    "shm": "memcpy", "tcp": "socket", "grpc": "bare stream", "gloo": "send/recv", "nixl": "memcpy",
}  # fmt: skip
CHECKED_OF = {"tcp": "checked socket", "grpc": "checked stream", "gloo": "checked send/recv"}
AIM_OF = {"shm": 0.6, "tcp": 0.8, "grpc": 0.7, "gloo": 0.85}
WARM_UP = 2


def num_blocks_of(size_mib: int) -> int:
    """The number of blocks that is nearest to so many MiB."""
    return max(1, round(size_mib * MIB / LAYOUT.block_bytes))


def num_rounds_of(size_mib: int, *, is_quick: bool) -> int:
    return 3 if is_quick else max(7, min(40, 640 // size_mib))


Seconds = dict[tuple[int, str], list[float]]
"""Seconds of each round, by size in MiB and by transport or limit."""


async def measure(
    transports: Sequence[str],
    sizes: Sequence[int],
    piece_bytes: int,
    *,
    is_quick: bool,
    device: str = "cpu",
) -> Seconds:
    seconds: Seconds = defaultdict(list)
    with ExitStack() as stack:
        gloo: GlooLimit | None = None
        if "gloo" in transports:
            gloo = stack.enter_context(closing(GlooLimit(chunk_bytes=piece_bytes)))
        async with BenchReceiver(num_blocks_of(max(sizes)), piece_bytes, device) as receiver:
            for size in sizes:
                for number in range(WARM_UP + num_rounds_of(size, is_quick=is_quick)):
                    found = await _round(receiver, gloo, transports, num_blocks_of(size))
                    for name, took_s in found.items() if number >= WARM_UP else ():
                        seconds[size, name].append(took_s)
    return seconds


async def _round(
    receiver: BenchReceiver, gloo: GlooLimit | None, transports: Sequence[str], num_blocks: int
) -> dict[str, float]:
    num_bytes = num_blocks * LAYOUT.block_bytes
    found = {"memcpy": receiver.memcpy(num_bytes), "checksums": receiver.checksums(num_blocks)}
    for name in transports:
        found[name] = await receiver.handoff(name, num_blocks)
    if "grpc" in transports:
        found["bare stream"] = await receiver.bare_stream(num_bytes)
        found[CHECKED_OF["grpc"]] = await receiver.bare_stream(num_bytes, is_checked=True)
    if not {"tcp", "grpc"}.isdisjoint(transports):
        found["socket"] = receiver.plain_socket(num_bytes)
        found[CHECKED_OF["tcp"]] = receiver.checked_socket(num_bytes)
    if gloo is not None:
        found["send/recv"] = gloo.seconds(num_bytes)
        found[CHECKED_OF["gloo"]] = gloo.seconds(num_bytes, is_checked=True)
    return found


def report(
    transports: Sequence[str] = TRANSPORTS,
    sizes: Sequence[int] = SIZES,
    piece_bytes: int = MAX_PIECE_BYTES,
    *,
    is_quick: bool = False,
    device: str = "cpu",
) -> str:
    measuring = measure(transports, sizes, piece_bytes, is_quick=is_quick, device=device)
    seconds = uvloop.run(measuring)
    rows = [_row(seconds, size, name) for size in sizes for name in transports]
    limits: list[tuple[str | float, ...]] = [
        (f"{_mib(size):.1f}", *(_rate(seconds, size, name) for name in _limits(seconds)))
        for size in sizes
    ]
    return "\n\n".join(
        (
            f"### A handoff of {LAYOUT.num_layers} layers, {LAYOUT.num_kv_heads} heads of "
            f"{LAYOUT.head_dim}, {LAYOUT.dtype}, blocks of {LAYOUT.block_size}",
            table(
                (
                    "MiB, transport", "ms, median", "ms, best", "GB/s", "limit", "limit, GB/s",
                    "share of limit", "share of limit, best", "checked limit / limit",
                    "share of checked limit", "target",
                    "checksums of one side, share of time",
                ),
                rows,
            ),
            "What the machine gives in the same rounds, GB/s:",
            table(("MiB", *_limits(seconds)), limits),
        )
    )  # fmt: skip


def _row(seconds: Seconds, size: int, name: str) -> tuple[str | float, ...]:
    took_s, limit = _median(seconds, size, name), LIMIT_OF[name]
    checked = CHECKED_OF.get(name)
    checked_s = math.nan if checked is None else _median(seconds, size, checked)
    return (
        f"{_mib(size):.1f}, {name}",
        took_s * 1e3,
        min(seconds[size, name]) * 1e3,
        _rate(seconds, size, name),
        limit,
        _rate(seconds, size, limit),
        _median(seconds, size, limit) / took_s,
        min(seconds[size, limit]) / min(seconds[size, name]),
        _median(seconds, size, limit) / checked_s,
        checked_s / took_s,
        AIM_OF.get(name, ""),
        _median(seconds, size, "checksums") / took_s,
    )


def _limits(seconds: Seconds) -> list[str]:
    measured = {name for _, name in seconds}
    names = ("memcpy", "checksums", "socket", "bare stream", "send/recv", *CHECKED_OF.values())
    return [name for name in names if name in measured]


def _mib(size: int) -> float:
    return num_blocks_of(size) * LAYOUT.block_bytes / MIB


def _median(seconds: Seconds, size: int, name: str) -> float:
    return statistics.median(seconds[size, name])


def _rate(seconds: Seconds, size: int, name: str) -> float:
    return num_blocks_of(size) * LAYOUT.block_bytes / _median(seconds, size, name) / 1e9


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--transports", nargs="+", choices=[*LIMIT_OF], default=TRANSPORTS)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="MiB of a handoff")
    parser.add_argument("--timeline", type=Path, help="also draw one prompt's way, by the first")
    parser.add_argument("--piece-kib", type=int, default=MAX_PIECE_BYTES >> 10)
    parser.add_argument("--device", default="cpu", help="where the KV of both is, as torch says")
    parser.add_argument("--quick", action="store_true", help="few rounds")
    arguments = parser.parse_args()
    keep_freed_memory()  # as a replica does
    print(surroundings(), flush=True)
    if arguments.timeline is not None:
        draw(uvloop.run(record(transport=arguments.transports[0])), arguments.timeline)
    piece_bytes = arguments.piece_kib << 10
    print(
        "\n"
        + report(
            arguments.transports,
            arguments.sizes,
            piece_bytes,
            is_quick=arguments.quick,
            device=arguments.device,
        )
    )


if __name__ == "__main__":
    main()
