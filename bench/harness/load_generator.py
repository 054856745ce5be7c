"""Sends a trace to a deployment with `baton bench serve`, and reads its results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.harness.live_deployment import user_environment

BLOCK_SIZE = 16
"""Tokens of a prompt that one of `hash_ids` stands for, in the traces that benchmarks write."""


def measure(url: str, folder: Path, *arguments: object) -> dict[str, Any]:
    """The results of a load, by name; `arguments` are those of `baton bench serve`."""
    out = folder / "live.json"
    words = [url, *arguments, "--json", out]
    subprocess.run(
        [sys.executable, "-m", "baton.platform.cli.main", "bench", "serve", *map(str, words)],
        check=True,
        stdout=subprocess.DEVNULL,
        env=user_environment(),
    )
    results: dict[str, Any] = json.loads(out.read_text())
    return results


def percentile(results: dict[str, Any], name: str, percent: int) -> float:
    """A percentile of a latency, in seconds: `name` is `ttft`, `itl`, `tpot` or `e2e`."""
    return float(results[name]["by_percent"][str(percent)])
