"""Runs `baton serve` as a user would: starts, watches and stops it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import psutil

START_LIMIT_S = 600.0
"""Seconds; a busy machine takes minutes."""
STOP_LIMIT_S = 90.0
STAGE = re.compile(r" INFO serve: (.+) \(baton\.")
REPLICA_ID = re.compile(r"\b(decode|prefill)-\w+")
ADMIN_URL = re.compile(r"operators\s+http://[^\s:]+:(\d+)/")
URL = re.compile(r"OpenAI API\s+http://[^\s:]+:(\d+)/v1")


class LiveDeployment:
    """A context: entering returns at once, `wait` when requests are answered; leaving ends all
    processes.

    `config` is the tree of a `baton.yaml`, without the ports.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        ports = {"host": "127.0.0.1", "port": 0, "grpc_port": 0}
        self._config = {**config, "gateway": {**config.get("gateway", {}), **ports}}
        self._output: list[str] = []
        self.stage_at: dict[str, float] = {}
        """When each stage of the start was printed, by its text with replicas named by role."""
        self._port = 0
        self.admin_port = 0
        """Set once `wait` has returned."""
        self._announced = threading.Event()
        self._folder = tempfile.TemporaryDirectory(prefix="baton-bench-")
        self.started_at = 0.0
        """A time.perf_counter, as below."""
        self.announced_at = 0.0
        """When the line with the address was printed."""

    def __enter__(self) -> Self:
        file = Path(self._folder.name) / "baton.yaml"
        file.write_bytes(msgspec.yaml.encode(self._config))
        self.started_at = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "baton.platform.cli.main", "serve", "-f", str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=user_environment(),
        )
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(STOP_LIMIT_S)
        finally:
            self._process.kill()
            self._folder.cleanup()

    def wait(self) -> int:
        """The HTTP port, once requests are answered. Raises RuntimeError with what was printed."""
        if not self._announced.wait(START_LIMIT_S) or not self._port:
            raise RuntimeError("baton serve did not come up:\n" + "".join(self._output))
        return self._port

    def processes(self) -> list[psutil.Process]:
        """The command and all processes of its session."""
        sessions = set(self._children())
        return [
            process
            for process in psutil.process_iter()
            if process.pid == self._process.pid or _session(process.pid) in sessions
        ]

    def _children(self) -> list[int]:
        try:
            return [child.pid for child in psutil.Process(self._process.pid).children()]
        except psutil.NoSuchProcess:
            return []

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._output.append(line)
            if match := STAGE.search(line):
                stage = REPLICA_ID.sub(r"\1", match[1])
                self.stage_at.setdefault(stage, time.perf_counter())
            if match := URL.search(line):
                self._port = int(match[1])
                self.announced_at = time.perf_counter()
            if match := ADMIN_URL.search(line):
                self.admin_port = int(match[1])
                self._announced.set()
        self._announced.set()  # it has ended


def user_environment() -> dict[str, str]:
    environment = {**os.environ, "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as for a user from the second run on
    return environment


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None
