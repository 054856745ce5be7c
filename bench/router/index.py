"""The CPU time to hash a prompt's blocks, and to find the replicas that have them cached.

    1,000 replicas, 10,000 blocks each      random hashes
    a prompt of 128k tokens                 8,192 blocks, which a tenth of the replicas have in part

Times are the median CPU time of this thread; lookups cycle through prompts, so that nothing is in
the CPU's caches. Memory is the growth of the process. The other column is the same in pure Python,
as where no kernels are compiled.

    python -m bench.router.index [--quick]
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from statistics import median

import psutil

from baton.core.block_hash import BlockNames
from baton.core.ids import Epoch
from baton.core.kv_events import KvChange, KvEvent, KvEvents
from baton.engine.blocks.kv_event_log import KvEventLog
from baton.engine.blocks.prefix_cache import PrefixCache
from baton.engine.kv_feed import PART_BLOCKS
from baton.kernels.cpu.library import library
from baton.kernels.names import block_names
from baton.kernels.names.holder_table import ReferenceTable, new_holder_table
from baton.proto import replica_pb2 as pb
from baton.proto.kv_events_wire import kv_events_from_proto, kv_events_to_proto
from baton.router.cache.kv_index import KvIndex
from bench.harness.command_line import benchmark_parser
from bench.harness.report import percentile, surroundings, table

LONG, SHORT, BLOCK = 131_072, 4_096, 16
ROOT = bytes(16)
DRAW = random.Random(1)
Naming = Callable[[bytes, Sequence[int], int], BlockNames]
Row = tuple[str, str, str | float, str | float]


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the replicas")
    is_quick = parser.parse_args().quick
    print(surroundings(), flush=True)
    print(report(is_quick=is_quick))


def report(*, is_quick: bool) -> str:
    if library() is None:
        raise SystemExit("nothing is compiled here: python -m baton.kernels.cpu says why")
    num_replicas = 100 if is_quick else 1000
    rows = [*naming(), *small_fleet(), *events(), *large_fleet(num_replicas), *shared(num_replicas)]
    rows += own_snapshot(100_000 if is_quick else 1_000_000)
    return table(("", "target", "compiled", "pure Python"), rows)


def naming() -> Iterator[Row]:
    for num_tokens, size, aim in ((SHORT, 16, ""), (LONG, 16, "1,000"), (LONG, 32, "1,000")):
        tokens = tuple(DRAW.randrange(150_000) for _ in range(num_tokens))
        yield (
            f"naming {num_tokens:,} tokens in blocks of {size}, µs",
            aim,
            cpu_us(partial(block_names.block_names, ROOT, tokens, size), 50),
            cpu_us(partial(block_names.reference, ROOT, tokens, size), 3),
        )


def small_fleet() -> Iterator[Row]:
    """64 replicas, half of which have a part of a prompt of 4,096 tokens."""
    tokens = tuple(DRAW.randrange(150_000) for _ in range(SHORT))
    took: list[float] = []
    for make, named in (
        (new_holder_table, block_names.block_names),
        (ReferenceTable, block_names.reference),
    ):
        index, names = KvIndex(make()), named(ROOT, tokens, BLOCK)
        for number in range(64):
            held = names[: DRAW.randrange(len(names))] if number % 2 else names[:0]
            index.apply(epoch(number), snapshot(held.packed + DRAW.randbytes(16 * 10_000)))
        took.append(cpu_us(partial(look_up, index, named, tokens), 100))
    yield ("naming 4,096 tokens, and who of 64 has them, µs", "200", took[0], took[1])


def look_up(index: KvIndex, named: Naming, tokens: Sequence[int]) -> dict[Epoch, int]:
    return index.num_cached_blocks(named(ROOT, tokens, BLOCK))


def events() -> Iterator[Row]:
    """Cache events of one replica with a full cache: for each stored block another is evicted."""
    for num_names in (1, 16, 512):
        rates: list[float] = []
        for make, num_events in ((new_holder_table, 40_000), (ReferenceTable, 4_000)):
            num_events = max(20, num_events // num_names)
            index, said = KvIndex(make()), list(turnover(num_events, num_names))
            index.apply(epoch(0), snapshot(DRAW.randbytes(16 * 200_000)))
            rates.append(num_events * num_names / cpu_s(partial(observe, index, said)))
        aim = "1,000,000" if num_names > 1 else ""
        yield (f"names applied a second, {num_names} an event", aim, rates[0], rates[1])


def observe(index: KvIndex, said: Sequence[KvEvents]) -> None:
    for each in said:
        index.apply(epoch(0), each)


def turnover(num_events: int, num_names: int) -> Iterator[KvEvents]:
    """Messages of up to 16 events; the second half of them undoes the first."""
    said = [DRAW.randbytes(16 * num_names) for _ in range(num_events // 2)]
    changes = [
        *(KvEvent(KvChange.STORED, names) for names in said),
        *(KvEvent(KvChange.EVICTED, names) for names in said),
    ]
    for start in range(0, len(changes), 16):
        yield KvEvents(first_sequence=1 + start, events=tuple(changes[start : start + 16]))


def large_fleet(num_replicas: int) -> Iterator[Row]:
    """Of nine tenths of the replicas no other has any block; the last tenth shares prompts."""
    prompts = [BlockNames(DRAW.randbytes(LONG // BLOCK * 16)) for _ in range(4)]
    own = [BlockNames(DRAW.randbytes(LONG // BLOCK * 16)) for _ in range(num_replicas // 4)]
    before, index, times = rss(), KvIndex(), []
    for number in range(num_replicas):
        held = own[number] if number < len(own) else BlockNames()
        if number % 10 == 9:
            held = prompts[number // 10 % 4][: DRAW.randrange(1, LONG // BLOCK)]
        names = held.packed + DRAW.randbytes(16 * (10_000 - len(held)))
        for part in parts(names):
            times.append(cpu_s(partial(receive, index, epoch(number), part)))
    num_blocks = sum(index.num_blocks(epoch(number)) for number in range(num_replicas))
    fleet = f"{num_replicas:,} replicas with {num_blocks / 1e6:.1f} million blocks"
    yield (f"memory of {fleet}, bytes a block", "100", (rss() - before) / num_blocks, "-")
    yield (f"snapshots of {fleet}, from the wire into the index, s", "2", sum(times), "-")
    yield (
        "the same, of 99% of the parts none longer than, ms",
        "1",
        percentile(times, 99) * 1e3,
        "-",
    )
    others = cycle(each for number, each in enumerate(own) if number % 10 != 9)
    hot = cycle(prompts)
    yield (
        "who has 8,192 names, of which one replica has all, µs",
        "100",
        cpu_us(lambda: index.num_cached_blocks(next(others)), 200),
        "-",
    )
    yield (
        "who has 8,192 names, of which some replicas have some, µs",
        "100",
        cpu_us(lambda: index.num_cached_blocks(next(hot)), 200),
        "-",
    )


def shared(num_replicas: int) -> Iterator[Row]:
    """Each block is on three random replicas, so that hardly two blocks are on the same ones."""
    num_names = num_replicas * 10_000 // 3
    before, index = rss(), KvIndex()
    names_by_replica = [bytearray() for _ in range(num_replicas)]
    for _ in range(num_names):
        name = DRAW.randbytes(16)
        for number in DRAW.sample(range(num_replicas), 3):
            names_by_replica[number] += name
    held = rss() - before
    for number, names in enumerate(names_by_replica):
        for part in parts(bytes(names)):
            receive(index, epoch(number), part)
    num_blocks = sum(len(names) // 16 for names in names_by_replica)
    used = rss() - before - held
    yield (
        "memory if each name is on three replicas at random, bytes a block",
        "100",
        used / num_blocks,
        "-",
    )


def own_snapshot(num_blocks: int) -> Iterator[Row]:
    """A snapshot that a replica's event loop reads of its own cache while its engine goes on."""
    cache = PrefixCache()
    cache.log = KvEventLog()
    for block in range(num_blocks):
        cache.add(block, DRAW.randbytes(16))
    took = [
        cpu_s(partial(cache.names_of, range(start, start + PART_BLOCKS)))
        for start in range(0, num_blocks, PART_BLOCKS)
    ]
    whole = cpu_s(lambda: b"".join(cache.names()))
    yield (f"a replica reads its {num_blocks:,} names, ms", "", "-", sum(took) * 1e3)
    yield ("the same, the longest stretch, ms", "1", "-", max(took) * 1e3)
    yield ("the same at once, ms", "", "-", whole * 1e3)


def epoch(number: int) -> Epoch:
    return Epoch(f"replica-{number}")


def snapshot(names: bytes, part: int = 0, has_more: bool = False) -> KvEvents:
    stored = (KvEvent(KvChange.STORED, names),)
    return KvEvents(first_sequence=1, events=stored, is_snapshot=True, part=part, has_more=has_more)


def parts(names: bytes) -> Sequence[bytes]:
    """The messages of a snapshot, as a replica sends them."""
    step = PART_BLOCKS * 16
    return [
        kv_events_to_proto(
            snapshot(names[start : start + step], number, start + step < len(names))
        ).SerializeToString()
        for number, start in enumerate(range(0, len(names), step))
    ]


def receive(index: KvIndex, replica: Epoch, message: bytes) -> None:
    index.apply(replica, kv_events_from_proto(pb.KvEvents.FromString(message)))


def cpu_s(function: Callable[[], object]) -> float:
    started = time.thread_time()
    function()
    return time.thread_time() - started


def cpu_us(function: Callable[[], object], times: int) -> float:
    return median(cpu_s(function) for _ in range(times)) * 1e6


def rss() -> int:
    return int(psutil.Process().memory_info().rss)


if __name__ == "__main__":
    main()
