"""How measurements are written down: percentiles, tables, and what they were taken on."""

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
    """By nearest rank; NaN of nothing."""
    ranked = sorted(values)
    if not ranked:
        return math.nan
    return ranked[max(0, math.ceil(len(ranked) * percent / 100) - 1)]


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if not math.isfinite(value):
        return "-"
    rounded = float(f"{value:.3g}")
    if rounded == 0:
        return "0"
    decimals = 2 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(0, decimals)}f}"


def table(header: Sequence[str], rows: Iterable[Sequence[str | float]]) -> str:
    """A Markdown table: the first column is text, the others are numbers or text on the right."""
    lines = ["| " + " | ".join(header) + " |", "|---" + "|--:" * (len(header) - 1) + "|"]
    for row in rows:
        cells = [cell if isinstance(cell, str) else number(cell) for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def surroundings() -> str:
    """Date and machine, in one line; nothing that names the machine."""
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
