"""CPU cost of gateway and data plane per request and per token, with an echo engine.

Streams over HTTP against a gateway, a decode and a prefill process. Each level of concurrency is
run twice: with 2 output tokens a request, which shows what a request costs (HTTP, placement,
prefill, handoff, completion), and with 128, which shows what each further token costs.

    python -m bench.serving.gateway
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import psutil
import uvloop

from bench.harness.command_line import benchmark_parser
from bench.harness.echo_deployment import VOCAB_SIZE, Running, running
from bench.harness.report import percentile, surroundings, table
from bench.harness.sse_client import Connection, Streamed

PROMPT_LEN = 128
SHORT, LONG = 2, 128
"""Output tokens a request."""
CONCURRENCY = (1, 16, 64)
NUM_LONG = {1: 24, 16: 96, 64: 256}
"""Requests of 128 output tokens, by concurrency."""
NUM_SHORT = {1: 200, 16: 640, 64: 1280}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The counts and CPU time of one run."""

    num_requests: int
    num_tokens: int
    seconds: float
    cpu: Mapping[str, float]
    """CPU seconds by process."""
    first_token_ms: tuple[float, ...]
    gap_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Both runs at one concurrency."""

    concurrency: int
    short: Load
    long: Load

    def request_us(self, process: str) -> float:
        """CPU microseconds of a request with 2 output tokens."""
        return self.short.cpu[process] / self.short.num_requests * 1e6

    def token_us(self, process: str) -> float:
        """CPU microseconds of each further output token."""
        further = self.long.num_tokens / self.long.num_requests - SHORT
        whole = self.long.cpu[process] / self.long.num_requests * 1e6
        return (whole - self.request_us(process)) / further


def measure(levels: Mapping[int, tuple[int, int]]) -> list[Level]:
    """`levels`: by concurrency, how many requests of 128 and of 2 output tokens."""
    with running() as deployment:
        return uvloop.run(_measure(deployment, levels))


async def _measure(deployment: Running, levels: Mapping[int, tuple[int, int]]) -> list[Level]:
    prompts = _prompts()
    await _run(deployment, prompts, 8, 64, LONG)  # imports, caches, first connections
    return [
        Level(
            concurrency=concurrency,
            long=await _run(deployment, prompts, concurrency, num_long, LONG),
            short=await _run(deployment, prompts, concurrency, num_short, SHORT),
        )
        for concurrency, (num_long, num_short) in levels.items()
    ]


async def _run(
    deployment: Running,
    prompts: Iterator[list[int]],
    concurrency: int,
    num_requests: int,
    max_tokens: int,
) -> Load:
    bodies = iter([_body(next(prompts), max_tokens) for _ in range(num_requests)])
    connections = [await Connection.open(deployment.http_port) for _ in range(concurrency)]
    started, cpu = time.perf_counter(), _cpu_seconds(deployment)
    answers = await asyncio.gather(*(_ask(connection, bodies) for connection in connections))
    seconds = time.perf_counter() - started
    used = {name: after - cpu[name] for name, after in _cpu_seconds(deployment).items()}
    for connection in connections:
        await connection.close()
    streamed = [answer for of_connection in answers for answer in of_connection]
    return Load(
        num_requests=len(streamed),
        num_tokens=sum(answer.last["usage"]["completion_tokens"] for answer in streamed),
        seconds=seconds,
        cpu=used,
        first_token_ms=tuple(answer.times[0] * 1e3 for answer in streamed),
        gap_ms=tuple(gap * 1e3 for answer in streamed for gap in answer.gaps),
    )


async def _ask(connection: Connection, bodies: Iterator[dict[str, Any]]) -> list[Streamed]:
    """Send one request after another until there are no more."""
    return [await connection.complete(body) for body in bodies]


def _body(prompt: list[int], max_tokens: int) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }


def _prompts() -> Iterator[list[int]]:
    """Prompts without a common prefix: each is prefilled and handed over."""
    random_ = random.Random(0)
    while True:
        yield random_.choices(range(3, VOCAB_SIZE), k=PROMPT_LEN)


def _cpu_seconds(deployment: Running) -> dict[str, float]:
    us = psutil.Process().cpu_times()
    return {**deployment.cpu_seconds(), "client": us.user + us.system}


def report(*, is_quick: bool = False) -> str:
    share = 8 if is_quick else 1
    levels = measure({c: (NUM_LONG[c] // share, NUM_SHORT[c] // share) for c in CONCURRENCY})
    names = ("gateway", "decode", "prefill", "client")
    speed = table(
        ("streams", "tokens/s", "requests/s", "TTFT p50, ms", "p99", "ITL p50, ms", "p99"),
        [
            (
                str(level.concurrency),
                level.long.num_tokens / level.long.seconds,
                level.long.num_requests / level.long.seconds,
                percentile(level.long.first_token_ms, 50),
                percentile(level.long.first_token_ms, 99),
                percentile(level.long.gap_ms, 50),
                percentile(level.long.gap_ms, 99),
            )
            for level in levels
        ],
    )
    tokens = table(
        ("CPU µs a further token, at streams", *names),
        [(str(level.concurrency), *map(level.token_us, names)) for level in levels],
    )
    requests = table(
        ("CPU µs a request of 2 tokens, at streams", *names),
        [(str(level.concurrency), *map(level.request_us, names)) for level in levels],
    )
    return "\n\n".join(
        (
            "### Echo engine, 128-token prompts, 128 output tokens, streamed",
            speed,
            tokens,
            requests,
        )
    )


if __name__ == "__main__":
    benchmark_parser(__doc__).parse_args()
    print(f"{surroundings()}\n\n{report()}")
