"""pytest in a process of its own that need not import again what is not ours.

    parent    torch, transformers, grpc ... imported once
      `-fork-> child    nothing of the product: takes the tree's, runs pytest, ends

Importing takes longer than most tests that kill a fault. The parent must not compute anything: a
fork has none of its threads.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

NICENESS = 5
POLL_S = 0.05
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
FOREIGN = (
    "pytest_asyncio",
    "hypothesis",
    "torch",
    "transformers.modeling_utils",
    "tokenizers",
    "safetensors.torch",
    "grpc.aio",
    "httpx",
    "msgspec",
    "starlette.applications",
    "jsonschema",
)


def import_foreign() -> None:
    for name in THREADS:
        os.environ.setdefault(name, "1")
    if not os.path.exists("/dev/nvidia0"):
        os.environ.setdefault("TRITON_INTERPRET", "1")  # looked at when Triton is imported
    for module in FOREIGN:
        with suppress(ImportError):
            importlib.import_module(module)


def run_pytest(
    arguments: Sequence[str], tree: Path, environment: Mapping[str, str], limit_s: float
) -> tuple[int | None, str]:
    """The status it ends with, None if it took too long; and what it printed."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        child = os.fork()
        if child == 0:
            _be_pytest(arguments, tree, environment, output.fileno())
        try:
            status = _wait(child, limit_s)
        finally:
            _end(child)
        output.seek(0)
        return status, output.read()


def _be_pytest(
    arguments: Sequence[str], tree: Path, environment: Mapping[str, str], output: int
) -> None:
    status = 70
    try:
        os.setsid()  # a group of its own, which can be ended with what it started
        os.nice(NICENESS)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(tree)
        os.environ.update(environment)
        own = [name for name in sys.modules if name.partition(".")[0] in ("baton", "tests")]
        for name in own:
            del sys.modules[name]
        checkout = str(Path(__file__).parents[2])
        ours = ("", checkout, f"{checkout}/src")
        paths = [path for path in sys.path if path not in ours]
        sys.path[:] = [f"{tree}/src", str(tree), *paths]
        importlib.invalidate_caches()
        status = int(importlib.import_module("pytest").main(list(arguments)))
    finally:
        with suppress(ValueError, OSError):
            sys.stdout.flush()
        os._exit(status)


def _wait(child: int, limit_s: float) -> int | None:
    ends_at = time.monotonic() + limit_s
    while time.monotonic() < ends_at:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(POLL_S)
    _end(child)
    os.waitpid(child, 0)
    return None


def _end(group: int) -> None:
    """With all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
