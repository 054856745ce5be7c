"""The cost of a handoff between tensor-parallel replicas: rank to rank, and through the leads.

    python -m bench.transfer.ranks [--transport tcp] [--mib 64] [--ranks 2] [--turns 3]

Both sides are in this process, with real caches in the memory of so many ranks; CPU time is that of
both together, from opening a transfer until it is sealed. One rank is the cost of as many bytes
without splitting and joining.
"""

from __future__ import annotations

import asyncio
import statistics
import time

from tests.kv_transfer.replicas import DecodeReplica, PrefillReplica, request_holder
from tests.kv_transfer.world import World, serving, unaltered

from baton.core.ids import TransferId
from baton.core.kv_layout import KvLayout
from baton.kv_transfer.handoff.reservation import Reservation
from baton.kv_transfer.receiving.fetch import FetchConfig
from baton.kv_transfer.receiving.receiver import ReceiverConfig
from bench.harness.command_line import benchmark_parser
from bench.harness.report import surroundings, table

MIB = 1 << 20
LAYOUT = KvLayout(
    model_fingerprint=b"m",
    dtype="bfloat16",
    num_layers=28,
    num_kv_heads=8,
    head_dim=128,
    block_size=16,
)
WAYS = {"one rank": (False, False), "through the leads": (True, False), "by rank": (True, True)}
"""Whether there are several ranks, and whether each pair of them has a stream."""
ROUNDS = 8


class Handoffs:
    """Handoffs between a P and a D with room for one prompt."""

    def __init__(self, transport: str, num_blocks: int, num_ranks: int, *, by_rank: bool) -> None:
        self._num_tokens = num_blocks * LAYOUT.block_size
        room = num_blocks + 8
        limits = ReceiverConfig(max_leased_fraction=1.0, min_stream_bytes=1 if by_rank else 1 << 50)
        self.prefill = PrefillReplica(layout=LAYOUT, num_ranks=num_ranks, num_blocks=room)
        self.decode = DecodeReplica(
            layout=LAYOUT, num_ranks=num_ranks, num_blocks=room, config=limits
        )
        fetching = FetchConfig()
        self.world = World(
            transport, unaltered, self.prefill, self.decode, fetching, joins_planes=True
        )

    async def seconds(self, number: int) -> tuple[float, float]:
        """CPU and wall time of one handoff."""
        it, name = self.world, TransferId(f"kv-{number}")
        prompt = tuple(range(number * self._num_tokens, (number + 1) * self._num_tokens))

        def admit() -> None:
            assert self.prefill.grant(self.decode.receiver.epoch, name, prompt)
            self.prefill.sender.publish(name, len(prompt))

        def reserve() -> Reservation | None:
            return self.decode.reserve(self.prefill.sender.epoch, name, prompt)

        await it.on_p.call(admit)
        reservation = await it.on_d.call(reserve)
        assert reservation is not None
        cpu, wall = time.process_time(), time.perf_counter()
        await it.fetch(reservation)
        took = time.process_time() - cpu, time.perf_counter() - wall
        await it.fetcher.close()
        await it.on_p.call(lambda: self._end_prefill(name))
        await it.on_d.call(lambda: self._end_decode(name, prompt))
        return took

    def _end_prefill(self, name: TransferId) -> None:
        self.prefill.sender.finish(name)
        self.prefill.pool.release(request_holder(name))
        self.prefill.pool.reset_cache()

    def _end_decode(self, name: TransferId, prompt: tuple[int, ...]) -> None:
        self.decode.adopt(name, prompt)
        self.decode.finish(name)
        self.decode.pool.reset_cache()


async def measured(handoffs: Handoffs) -> list[tuple[float, float]]:
    """Measured handoffs, after a first one that touches the memory and opens connections."""
    async with serving(handoffs.world) as it:
        for half in it.halves:
            vars(half).pop("max_piece_bytes", None)  # the transport's preferred size
        return [await handoffs.seconds(number) for number in range(ROUNDS + 1)][1:]


def report(transport: str, mib: float, num_ranks: int, turns: int) -> str:
    num_blocks = max(1, round(mib * MIB / LAYOUT.block_bytes))
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for _ in range(turns):
        for way, (is_several, by_rank) in WAYS.items():
            ranks = num_ranks if is_several else 1
            handoffs = Handoffs(transport, num_blocks, ranks, by_rank=by_rank)
            found[way] += asyncio.run(measured(handoffs))
    rows = [
        (
            way,
            statistics.median(cpu for cpu, _ in took) * 1e3,
            min(cpu for cpu, _ in took) * 1e3,
            min(wall for _, wall in took) * 1e3,
        )
        for way, took in found.items()
    ]
    size = num_blocks * LAYOUT.block_bytes / MIB
    heading = f"{size:.1f} MiB by {transport}, {num_ranks} ranks"
    return table((heading, "CPU ms, median", "CPU ms, best", "wall ms, best"), rows)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--transport", default="tcp")
    parser.add_argument("--mib", type=float, default=64)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    print(surroundings(), "\n", report(args.transport, args.mib, args.ranks, args.turns), sep="\n")


if __name__ == "__main__":
    main()
