"""`baton serve` as a subprocess, found and stopped the way a user would."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil

START_LIMIT_S = 300.0
STOP_LIMIT_S = 90.0


@dataclass(slots=True)
class Server:
    """A running `baton serve`."""

    process: subprocess.Popen[str]
    url: str
    grpc_target: str
    admin_url: str
    output: list[str] = field(default_factory=list)

    def replica_process(self, deployment: str) -> psutil.Process:
        """The process of the one replica of `Prefill` or `Decode`."""
        name = f"ray::ServeReplica:baton:{deployment}"
        found = self.processes_called(name)
        assert len(found) == 1, f"{len(found)} processes are called {name}"
        return found[0]

    def processes_called(self, name: str) -> list[psutil.Process]:
        """Whose command begins with it; others may end while they are looked at."""
        return [p for p in self.processes() if _command(p).startswith(name)]

    def processes(self) -> list[psutil.Process]:
        return [p for p in psutil.process_iter() if self._is_ours(p)]

    def status(self) -> dict[str, Any]:
        def ask() -> dict[str, Any]:
            body: dict[str, Any] = httpx.get(f"{self.admin_url}/debug/status", timeout=60).json()
            return body

        return when_all_answer(ask)

    def ray_address(self) -> str:
        """Of the Ray cluster that it has started."""
        option = "--gcs-address="
        words = self.raylet().cmdline()
        [address] = [word.removeprefix(option) for word in words if word.startswith(option)]
        return address

    def raylet(self) -> psutil.Process:
        """Of the only node."""
        [found] = [process for process in self.processes() if _name(process) == "raylet"]
        return found

    def epoch(self, pool: str) -> str | None:
        """Of the pool's only replica, if the gateway can reach it."""
        reachable = [r["epoch"] for r in self.status()["pools"][pool] if r["is_reachable"]]
        return reachable[0] if len(reachable) == 1 else None

    def leaks(self) -> dict[str, Any]:
        body: dict[str, Any] = httpx.get(f"{self.admin_url}/debug/leaks", timeout=60).json()
        return body

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            session = os.getsid(process.pid)
            child = {p.pid for p in psutil.Process(self.process.pid).children()}
        except (ProcessLookupError, psutil.NoSuchProcess):
            return False
        return session in child


def when_all_answer(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The status of a deployment: on a busy machine a replica may miss the two seconds it has, some
    times in a row."""
    for _ in range(10):
        status = ask()
        if all(row["is_reachable"] for rows in status["pools"].values() for row in rows):
            break
    return status


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _name(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):  # it ends while it is looked at
        return process.name()
    return ""


def start_server(*options: str, **variables: str) -> Server:
    """Beside another cluster that is said to run: it must start its own. `variables` are added to
    its environment."""
    environment = {
        **os.environ, "COLUMNS": "200", "PYTHONUNBUFFERED": "1", "RAY_ADDRESS": "192.0.2.1:6379",
        **variables,
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "baton.platform.cli.main", "serve", "--host", "127.0.0.1",
         "--port", "0", "--grpc-port", "0", "--dtype", "float32", *options],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
    )  # fmt: skip
    server = Server(process, "", "", "")
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            server.output.append(line)
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    deadline = time.monotonic() + START_LIMIT_S
    while not server.admin_url:
        line = lines.get(timeout=deadline - time.monotonic())
        assert line is not None, "".join(server.output)
        if match := re.search(r"OpenAI API\s+(http://\S+)/v1", line):
            server.url = match[1]
        if match := re.search(r"gRPC\s+(\S+:\d+)", line):
            server.grpc_target = match[1]
        if match := re.search(r"operators\s+(http://[^/]+)/", line):
            server.admin_url = match[1]
    return server


def stop_server(server: Server) -> int:
    """Ask it to stop, as Ctrl-C does, and return its exit status."""
    server.process.send_signal(signal.SIGINT)
    return server.process.wait(STOP_LIMIT_S)


def stop_wholly(server: Server) -> None:
    """Raises AssertionError if it fails, or leaves a process behind."""
    ours = server.processes()  # found by their parent, which is gone later
    status = stop_server(server)
    _, alive = psutil.wait_procs(ours, timeout=60)
    assert status == 0, "".join(server.output)
    assert not alive, f"left behind: {alive}"
