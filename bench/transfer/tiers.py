"""The TTFT of a prompt that is sent again: recomputed, or swapped in from a tier.

    cold        sent for the first time: computed
    returning   sent again after another prompt has taken its blocks

One replica of each kind in this process, with a pool that holds one prompt; one request at a time.
All kinds take turns, so that other load on the machine affects all alike; the table has medians and
interquartile ranges of TTFT. The control, without a tier, computes both. "times faster" compares a
returning prompt with that of the control in the same round, not with its own cold one: the control
shows that those two differ by their position in the sequence alone. The disk and the store are
folders whose files are in the page cache: their times are those of files, not of devices.

    python -m bench.transfer.tiers [--model demo] [--tokens 256,1024,1900] [--rounds 5]
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from baton.core.ids import ReplicaId, new_request_id
from baton.core.messages import Receipt
from baton.core.replicas import Role
from baton.core.sampling import SamplingParams
from baton.decode_service.worker import DecodeWorker
from baton.gateway.requests.generations.generation import Generation
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.models.model_folder import find_model
from baton.platform.offline.local_dispatcher import LocalDispatcher
from baton.platform.replica.replica import load_engine, start_replica
from bench.harness.command_line import benchmark_parser
from bench.harness.report import number, percentile, surroundings, table

CONTROL = "no tier"
ONE_TOKEN = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Returned:
    """Times of one prompt, cold and returning."""

    cold_s: float
    returning_s: float
    num_swapped_in: int


@dataclass(slots=True)
class Asking:
    """One replica and its client."""

    worker: DecodeWorker
    dispatcher: LocalDispatcher
    ids: random.Random

    def prompt(self, num_tokens: int) -> list[int]:
        return [self.ids.randrange(100, 4000) for _ in range(num_tokens)]

    async def ask(self, prompt: Sequence[int]) -> tuple[float, Receipt]:
        """Send a request for one token; returns the TTFT."""
        generation = Generation(
            request_id=new_request_id(), prompt=tuple(prompt), sampling=ONE_TOKEN
        )
        started = time.perf_counter()
        running = await self.dispatcher.start(generation)
        async for _ in running:
            pass
        return time.perf_counter() - started, running.receipt

    async def returned(self, num_tokens: int) -> Returned:
        prompt = self.prompt(num_tokens)
        cold_s, _ = await self.ask(prompt)
        await self._written_back()
        await self.ask(self.prompt(num_tokens))
        await self._written_back()
        returning_s, receipt = await self.ask(prompt)
        await self._written_back()
        return Returned(cold_s, returning_s, receipt.pulled_tokens)

    async def _written_back(self) -> None:
        while any(value for name, value in self.worker.metrics().items() if "_waiting" in name):
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.02)


@asynccontextmanager
async def asking(model: str, num_tokens: int, settings: dict[str, Any]) -> AsyncIterator[Asking]:
    num_blocks = (num_tokens + 64) // DeploymentConfig().decode.cache.block_size
    changes = {
        "model": model,
        "device": "cpu",
        "decode.cache.num_blocks": num_blocks,
        "transfer.max_leased_fraction": 1.0,
        "tiers.min_tokens": 16,
        **settings,
    }
    config = override(DeploymentConfig(), changes)
    engine = await load_engine(config, Role.DECODE, find_model(config.model))
    replica = await start_replica(
        config, Role.DECODE, engine, replica_id=ReplicaId("decode"), host="127.0.0.1"
    )
    assert isinstance(replica.worker, DecodeWorker)
    dispatcher = LocalDispatcher(replica.worker)
    try:
        it = Asking(replica.worker, dispatcher, random.Random(num_tokens))
        await it.ask(it.prompt(num_tokens // 2))  # warm
        yield it
    finally:
        await dispatcher.close()
        await replica.stop()


def tiers_in(folder: Path) -> dict[str, dict[str, Any]]:
    return {
        CONTROL: {},
        "host": {"tiers.host.gib": 4.0},
        "disk": {"tiers.disk.folder": str(folder / "disk")},
        "store": {"tiers.store.url": str(folder / "store")},
    }


async def measure(model: str, lengths: Sequence[int], num_rounds: int) -> str:
    rows: list[list[str | float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for num_tokens in lengths:
            async with AsyncExitStack() as running:
                by_tier = {
                    tier: await running.enter_async_context(asking(model, num_tokens, settings))
                    for tier, settings in tiers_in(Path(folder) / str(num_tokens)).items()
                }
                found: dict[str, list[Returned]] = {tier: [] for tier in by_tier}
                for _ in range(num_rounds):
                    for tier, one in by_tier.items():
                        found[tier].append(await one.returned(num_tokens))
            control = found[CONTROL]
            rows += [_row(num_tokens, tier, rounds, control) for tier, rounds in found.items()]
    header = ["tokens, tier", "cold ms", "returning ms", "times faster", "swapped in"]
    return table(header, rows)


def _row(
    num_tokens: int, tier: str, rounds: Sequence[Returned], control: Sequence[Returned]
) -> list[str | float]:
    pairs = zip(rounds, control, strict=True)
    swapped_in = [one.num_swapped_in for one in rounds]
    return [
        f"{num_tokens}, {tier}",
        _spread([one.cold_s * 1e3 for one in rounds]),
        _spread([one.returning_s * 1e3 for one in rounds]),
        _spread([computed.returning_s / one.returning_s for one, computed in pairs]),
        f"{min(swapped_in)} to {max(swapped_in)}",
    ]


def _spread(values: Sequence[float]) -> str:
    low, high = percentile(values, 25), percentile(values, 75)
    return f"{number(median(values))} ({number(low)} to {number(high)})"


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--tokens", default="256,1024,1900")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    lengths = [int(length) for length in options.tokens.split(",")]
    print(surroundings())
    print(asyncio.run(measure(options.model, lengths, options.rounds)))


if __name__ == "__main__":
    main()
