"""Formatting of measurements: percentiles, tables, and the machine they were taken on."""

from __future__ import annotations

import datetime
import math
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

CPU_INFO = Path("/proc/cpuinfo")


def percentile(values: Iterable[float], percent: float) -> float:
    """The percentile by nearest rank; NaN for no values."""
    ranked = sorted(values)
    if not ranked:
        return math.nan
    return ranked[max(0, math.ceil(len(ranked) * percent / 100) - 1)]


def number(value: float) -> str:
    """A number with three significant digits, without an exponent."""
    if not math.isfinite(value):
        return "-"
    rounded = float(f"{value:.3g}")
    if rounded == 0:
        return "0"
    decimals = 2 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(0, decimals)}f}"


def table(header: Sequence[str], rows: Iterable[Sequence[str | float]]) -> str:
    """A Markdown table: the first column is left-aligned, the others right-aligned."""
    lines = ["| " + " | ".join(header) + " |", "|---" + "|--:" * (len(header) - 1) + "|"]
    for row in rows:
        cells = [cell if isinstance(cell, str) else number(cell) for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def surroundings() -> str:
    """Date, kind of machine and versions, in one line; no host name."""
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    python = ".".join(map(str, sys.version_info[:3]))
    return (
        f"{date}, {os.cpu_count()} cores ({_cpu_model()}, {platform.machine()}), no GPU used, "
        f"Python {python}, torch {torch.__version__}"
    )


def _cpu_model() -> str:
    if CPU_INFO.is_file():
        for line in CPU_INFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return "CPU of unknown model"
