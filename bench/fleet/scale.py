"""Many gateways and many replicas: what a gateway spends to follow them all, and what it costs when
many of them join, leave or restart at once.

    fake replicas in ten processes (bench/fleet/fake_replicas.py), gateways in one each
    (bench/fleet/scale_gateway.py); every gateway has a stream to each replica, and follows what
    each has cached

Not included: models, prompts, real networks, HTTP, client gRPC, Ray and the registry (membership is
passed directly). Each process hosts a tenth of the fake replicas, so they are less independent
than real ones, and share the machine with the gateways. The phases: start; twenty seconds idle;
200 routing decisions for prompts of 4,096 tokens; three processes of replicas are killed; all
others are restarted at once; and then they are paused.

    python -m bench.fleet.scale [--replicas 10 100 1000] [--blocks 10000] [--busy] [--gateways 1]
"""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import median

from tests.gateway.fleet.known_replicas import make_replica

from baton.core.replicas import ReplicaInfo, Role
from bench.fleet.scale_gateway import Figures
from bench.harness.command_line import benchmark_parser
from bench.harness.report import surroundings, table

NUM_PROCESSES, NUM_KILLED = 10, 3
SUMS = ("idle: capacity reports a second",)
"""Results that are summed over gateways; of all others the table has the median."""


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--replicas", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--blocks", type=int, default=10_000, help="in each one's cache")
    parser.add_argument("--busy", action="store_true", help="each has news every second")
    parser.add_argument("--gateways", type=int, default=1)
    args = parser.parse_args()
    print(surroundings(), flush=True)
    found = [measure(num, args.blocks, args.gateways, is_busy=args.busy) for num in args.replicas]
    header = "replicas", *(f"{num:,}" for num in args.replicas)
    print(table(header, [(name, *(each[name] for each in found)) for name in found[0]]))


def measure(num_replicas: int, num_blocks: int, num_gateways: int, *, is_busy: bool) -> Figures:
    with (
        fake_replicas(num_replicas, num_blocks, is_busy=is_busy) as fakes,
        gateways(num_gateways) as pipes,
    ):
        infos = fakes.infos
        found = ask(pipes, "start", infos)
        for phase in ("idle", "decide"):
            found |= ask(pipes, phase, infos)
        fakes.kill(NUM_KILLED)
        left = [info for number, info in enumerate(infos) if number % NUM_PROCESSES >= NUM_KILLED]
        found |= ask(pipes, "vanish", left)
        fakes.restart()
        found |= ask(pipes, "restarted", left)
        fakes.suspend()
        return found | ask(pipes, "words", left)


Pipes = Sequence["subprocess.Popen[bytes]"]


def ask(pipes: Pipes, phase: str, infos: Sequence[ReplicaInfo]) -> Figures:
    for each in pipes:
        assert each.stdin is not None
        pickle.dump((phase, infos), each.stdin)
        each.stdin.flush()
    found: list[Figures] = [pickle.load(each.stdout) for each in pipes if each.stdout]
    return {
        name: sum(one[name] for one in found) if name in SUMS else median(f[name] for f in found)
        for name in found[0]
    }


@contextmanager
def gateways(number: int) -> Iterator[Pipes]:
    command = [sys.executable, "-m", "bench.fleet.scale_gateway"]
    pipes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(number)
    ]
    try:
        yield pipes
    finally:
        end(pipes)


class FakeReplicas:
    def __init__(self, processes: Sequence[subprocess.Popen[str]], number: int) -> None:
        self._processes = list(processes)
        ports = [self._port(process) for process in processes]
        self.infos = [fake(i, ports[i % NUM_PROCESSES]) for i in range(number)]

    def kill(self, number: int) -> None:
        for process in self._processes[:number]:
            process.kill()
        del self._processes[:number]

    def restart(self) -> None:
        """Restart all replicas on the same ports."""
        for process in self._processes:
            assert process.stdin is not None
            print(file=process.stdin, flush=True)
        for process in self._processes:
            self._port(process)

    def suspend(self) -> None:
        """Pause all replicas; connections last for some seconds."""
        for process in self._processes:
            process.send_signal(signal.SIGSTOP)

    @staticmethod
    def _port(process: subprocess.Popen[str]) -> int:
        assert process.stdout is not None
        return int(process.stdout.readline())


@contextmanager
def fake_replicas(number: int, num_blocks: int, *, is_busy: bool) -> Iterator[FakeReplicas]:
    """The fake replicas, half of them prefill."""
    command = [sys.executable, "-m", "bench.fleet.fake_replicas", str(num_blocks)]
    command += ["--busy"] if is_busy else []
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(NUM_PROCESSES)
    ]
    try:
        yield FakeReplicas(processes, number)
    finally:
        end(processes)


def end(processes: Sequence[subprocess.Popen[str]] | Pipes) -> None:
    for process in processes:
        process.kill()
        process.wait()


def fake(number: int, port: int) -> ReplicaInfo:
    role = Role.PREFILL if number // NUM_PROCESSES % 2 else Role.DECODE
    info = make_replica(f"{role}-{number}", role=role, max_open=64)
    return replace(info, address=f"127.0.0.1:{port}")


if __name__ == "__main__":
    main()
