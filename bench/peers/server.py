"""Runs one engine as a server: starts it, waits until it is ready, reads its memory, ends it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import psutil

from bench.harness.live_deployment import LiveDeployment
from bench.peers.setup import Peers

START_LIMIT_S = 300.0
STOP_LIMIT_S = 20.0
POLL_S = 0.05
KV_GIB = 2
CONTEXT = 4096
"""Tokens of the longest request."""
MAX_REQUESTS = 32
SLOT_TOKENS = 320
"""Tokens of each of llama.cpp's slots, when it serves MAX_REQUESTS."""
GIB = 1 << 30


class Server(Protocol):
    name: str
    """The engine's name."""
    label: str
    """Which of the engine's servers, for the log."""
    model: str
    """The model's name in requests."""
    port: int
    start_s: float
    """Seconds from the command until its health check answers, or it prints that it is ready."""
    num_slots: int
    """Requests that it runs concurrently."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def memory_gib(self) -> float: ...


class BatonServer:
    """`baton serve MODEL --prefill 0`, Ray and all."""

    name = "baton"

    def __init__(self, folder: Path, quantize: str | None = None) -> None:
        engine = {
            "cache": {"memory_gib": float(KV_GIB)},
            "scheduler": {"max_model_len": CONTEXT, "max_running": MAX_REQUESTS},
        }
        config: dict[str, Any] = {
            "model": str(folder),
            "served_model_name": folder.name,
            "dtype": "bfloat16",
            "prefill": {"replicas": 0, **engine},
            "decode": {"replicas": 1, **engine},
        }
        if quantize is not None:
            config["quantize"] = quantize
        self.label = f"baton {quantize or 'bf16'}"
        self.model = folder.name
        self.num_slots = MAX_REQUESTS
        self.port = 0
        self.start_s = 0.0
        self._deployment = LiveDeployment(config)

    def __enter__(self) -> Self:
        self._deployment.__enter__()
        try:
            self.port = self._deployment.wait()
        except BaseException:
            self._deployment.__exit__(None, None, None)
            raise
        self.start_s = self._deployment.announced_at - self._deployment.started_at
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._deployment.__exit__(kind, error, trace)

    def memory_gib(self) -> float:
        return memory_gib(self._deployment.processes())


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    name: str
    label: str
    model: str
    num_slots: int
    words: tuple[str, ...]
    """The command; PORT stands for the port."""
    environment: Mapping[str, str]


class CommandServer:
    """A program that listens on a given port, and answers /health when it is ready."""

    def __init__(self, command: Command) -> None:
        self.name, self.label, self.model = command.name, command.label, command.model
        self.num_slots = command.num_slots
        self.port = free_port()
        self.start_s = 0.0
        self._command = command
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the server ends

    def __enter__(self) -> Self:
        started = time.perf_counter()
        self._process = subprocess.Popen(
            [word.replace("PORT", str(self.port)) for word in self._command.words],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **self._command.environment},
            start_new_session=True,
        )
        while not self._is_ready():
            if self._process.poll() is not None or time.perf_counter() - started > START_LIMIT_S:
                said = self._said()
                self.__exit__(None, None, None)
                raise RuntimeError(f"{self.label} did not come up: {said}")
            time.sleep(POLL_S)
        self.start_s = time.perf_counter() - started
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_LIMIT_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def memory_gib(self) -> float:
        root = psutil.Process(self._process.pid)
        return memory_gib([root, *root.children(recursive=True)])

    def _is_ready(self) -> bool:
        with suppress(OSError, urllib.error.URLError):
            address = f"http://127.0.0.1:{self.port}/health"
            with urllib.request.urlopen(address, timeout=2.0) as answer:
                return bool(answer.status == 200)
        return False

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-2000:]


def vllm(peers: Peers, folder: Path) -> CommandServer:
    cores = sorted(os.sched_getaffinity(0))
    return CommandServer(
        Command(
            name="vllm-cpu",
            label="vllm-cpu bf16",
            model=folder.name,
            num_slots=MAX_REQUESTS,
            words=(
                *(str(peers.vllm), "-m", "vllm.entrypoints.openai.api_server"),
                *("--model", str(folder), "--served-model-name", folder.name),
                *("--host", "127.0.0.1", "--port", "PORT", "--dtype", "bfloat16"),
                *("--max-model-len", str(CONTEXT), "--max-num-seqs", str(MAX_REQUESTS)),
                "--disable-uvicorn-access-log",
            ),
            environment={
                "VLLM_TARGET_DEVICE": "cpu",
                "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB),
                "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
                "VLLM_NO_USAGE_STATS": "1",
                "HF_HUB_OFFLINE": "1",
            },
        )
    )


def llama(peers: Peers, file: Path, model: str, num_slots: int) -> CommandServer:
    """llama.cpp's server. One slot has the whole context; several share it, which is fastest."""
    context = CONTEXT if num_slots == 1 else num_slots * SLOT_TOKENS
    threads = str(len(os.sched_getaffinity(0)))
    return CommandServer(
        Command(
            name="llama.cpp",
            label=f"llama.cpp {file.stem} with {num_slots} slots",
            model=model,
            num_slots=num_slots,
            words=(
                *(str(peers.llama_program("llama-server")), "--model", str(file)),
                *("--alias", model, "--host", "127.0.0.1", "--port", "PORT"),
                *("--ctx-size", str(context), "--parallel", str(num_slots), "--no-kv-unified"),
                *("--threads", threads, "--threads-batch", threads, "--cache-ram", "0"),
                "--no-ui",
            ),
            environment={},
        )
    )


def openvino(peers: Peers, model: Path, name: str) -> CommandServer:
    threads = str(len(os.sched_getaffinity(0)))
    program = Path(__file__).with_name("openvino_server.py")
    return CommandServer(
        Command(
            name="openvino",
            label=f"openvino {model.name}",
            model=name,
            num_slots=MAX_REQUESTS,
            words=(
                *(str(peers.openvino), str(program), str(model), "PORT"),
                *(str(MAX_REQUESTS), str(KV_GIB), threads),
            ),
            environment={"HF_HUB_OFFLINE": "1"},
        )
    )


def memory_gib(processes: Sequence[psutil.Process]) -> float:
    """Memory of the processes; shared pages count once (PSS)."""
    total = 0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total / GIB


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
