"""The measures that engines are compared by: rows of the table, and how to take them."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.harness.report import number
from bench.peers.client import ask, prompt
from bench.peers.server import MAX_REQUESTS, SLOT_TOKENS, Server

PROMPT_LEN = OUTPUT_LEN = 128
PREFIX_LEN, REST_LEN = 2048, 32
PARALLEL = (4, 16, 32)
LENGTHS = (512, 2048)
BENCH_LIMIT_S = 240.0
MIN_MS = 1e-3
IMPOSSIBLE = 4.0
"""Times the measured rate of matrix products. A machine may be that much faster a minute later, or
with fewer bits, but not faster."""

Values = dict[str, float]
"""Values by row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    title: str
    is_larger_better: bool = True
    aims: Mapping[str, float] | None = None
    """The target factor over the best peer, by model."""


ROWS: dict[str, Row] = {
    "decode 1": Row(title="decode, 1 request, tok/s", aims={"0.6b": 1.25, "tiny": 1.5}),
    **{
        f"output {count}": Row(
            title=f"output tok/s with prefill, {count} requests", aims={"0.6b": 1.3, "tiny": 2.0}
        )
        for count in PARALLEL
    },
    **{
        f"steady {count}": Row(
            title=f"steady decode, {count} requests, tok/s", aims={"0.6b": aim, "tiny": 2.0}
        )
        for count, aim in zip(PARALLEL, (1.3, 1.6, 1.6), strict=True)
    },
    **{
        f"prefill {length}": Row(title=f"prefill, {length} tokens, tok/s", aims={"0.6b": 1.15})
        for length in LENGTHS
    },
    "prefix cold": Row(title=f"first token, {PREFIX_LEN}-token prefix, cold, ms",
                       is_larger_better=False),
    "prefix hit": Row(title="the same, hit, ms", is_larger_better=False, aims={"0.6b": 2.0}),
    "start": Row(title="start to ready, s", is_larger_better=False),
    "memory": Row(title="resident memory, GiB", is_larger_better=False),
    "bf16": Row(title="decode, 1 request, bfloat16, beside the next two, tok/s"),
    "int8": Row(title="decode, 1 request, 8-bit weights, tok/s"),
    "int4": Row(title="decode, 1 request, 4-bit weights, tok/s"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    name: str
    num_requests: int
    run: Callable[[Server, int, int], Coroutine[None, None, Values]]
    """Called with the server, the vocabulary size, and a seed that no other prompt has."""


async def warm_up(server: Server, vocab_size: int) -> None:
    """Send requests that are not measured, since the first ones are slower."""
    for seed, (count, length) in enumerate(((1, 64), (2, 64), (4, 200))):
        if server.num_slots < count:
            continue
        prompts = [prompt(length, vocab_size, -100 * seed - index) for index in range(count)]
        await ask(server.port, server.model, prompts, 16)


async def _decode(count: int, server: Server, vocab_size: int, seed: int) -> Values:
    prompts = [prompt(PROMPT_LEN, vocab_size, seed + index) for index in range(count)]
    asked = await ask(server.port, server.model, prompts, OUTPUT_LEN)
    if count == 1:
        return {"decode 1": asked.steady_rate}
    return {f"output {count}": asked.output_rate, f"steady {count}": asked.steady_rate}


async def _prefill(length: int, server: Server, vocab_size: int, seed: int) -> Values:
    asked = await ask(server.port, server.model, [prompt(length, vocab_size, seed)], 1)
    return {f"prefill {length}": length / asked.first_ms * 1e3}


async def _prefix(server: Server, vocab_size: int, seed: int) -> Values:
    prefix = prompt(PREFIX_LEN, vocab_size, seed)
    cold, hit = [
        await ask(
            server.port, server.model, [prefix + prompt(REST_LEN, vocab_size, seed + turn)], 1
        )
        for turn in (1, 2)
    ]
    return {"prefix cold": cold.first_ms, "prefix hit": hit.first_ms}


def impossible(values: Values, most: float) -> str:
    """Which of the values this machine cannot reach, as it computes `most` tokens a second; empty
    if none. A server that answers without computing has failed, or takes from a cache what it is to
    compute."""
    return "; ".join(
        f"{ROWS[row].title}: {number(value)}"
        for row, value in values.items()
        if tokens_a_second(row, value) > IMPOSSIBLE * most
    )


def tokens_a_second(row: str, value: float) -> float:
    """Tokens that are at least computed a second, where a measure has this value in this row."""
    match row:
        case "prefix cold":
            return (PREFIX_LEN + REST_LEN) / max(value, MIN_MS) * 1e3
        case "prefix hit":
            return REST_LEN / max(value, MIN_MS) * 1e3
        case _:
            return value


MEASURES = {
    measure.name: measure
    for measure in (
        Measure(name="decode", num_requests=1, run=partial(_decode, 1)),
        *(
            Measure(name=f"batch{count}", num_requests=count, run=partial(_decode, count))
            for count in PARALLEL
        ),
        *(
            Measure(name=f"prefill{length}", num_requests=1, run=partial(_prefill, length))
            for length in LENGTHS
        ),
        Measure(name="prefix", num_requests=1, run=_prefix),
    )
}


def batched_bench(program: Path, model: Path) -> Values:
    """llama.cpp's own benchmark of batched decoding, without a server."""
    threads = str(len(os.sched_getaffinity(0)))
    done = subprocess.run(
        [
            *(str(program), "--model", str(model), "--output-format", "jsonl"),
            *("--ctx-size", str(MAX_REQUESTS * SLOT_TOKENS), "--no-kv-unified"),
            *("-npp", str(PROMPT_LEN), "-ntg", str(OUTPUT_LEN)),
            *("-npl", ",".join(map(str, PARALLEL))),
            *("--threads", threads, "--threads-batch", threads),
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=BENCH_LIMIT_S,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {f"steady {row['pl']}": row["speed_tg"] for row in rows}


def best_ratio(row: Row, ours: float, peers: Mapping[str, float]) -> tuple[str, float] | None:
    """The best peer, and Baton's factor over it; None if either is missing."""
    if not peers or not ours:
        return None
    pick = max if row.is_larger_better else min
    name = pick(peers, key=peers.__getitem__)
    ratio = ours / peers[name] if row.is_larger_better else peers[name] / ours
    return name, ratio


def medians(samples: Mapping[str, Mapping[str, list[float]]]) -> dict[str, dict[str, float]]:
    """Medians by row and engine."""
    return {
        row: {engine: statistics.median(values) for engine, values in by_engine.items() if values}
        for row, by_engine in samples.items()
    }
