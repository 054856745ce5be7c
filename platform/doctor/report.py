"""The diagnosis as an operator reads it: tables and a verdict, or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from rich.box import SIMPLE
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from baton.platform.doctor.finding import Finding, Status, is_healthy, verdict
from baton.platform.doctor.matrix import Size, TransportMeasurement

MARK = {
    Status.OK: ("ok", "green"),
    Status.WARN: ("warn", "yellow"),
    Status.FAIL: ("FAIL", "bold red"),
    Status.SKIPPED: ("skipped", "dim"),
}

WHERE_WIDTH = 20
"""Width of the first column; a pair of replicas wraps into two lines."""


def as_json(findings: Sequence[Finding], ways: Sequence[TransportMeasurement]) -> dict[str, Any]:
    return {
        "is_healthy": is_healthy(findings),
        "verdict": verdict(findings),
        "findings": [asdict(finding) for finding in findings],
        "ways": [
            {
                **asdict(way),
                "sizes": [
                    {"num_bytes": size.num_bytes, "bytes_per_s": size.bytes_per_s}
                    for size in way.sizes
                ],
            }
            for way in ways
        ],
    }


def show(
    console: Console, findings: Sequence[Finding], ways: Sequence[TransportMeasurement]
) -> None:
    parts: list[RenderableType] = [_findings_table(findings)]
    parts += _ways_tables(ways)
    parts.append(Text(verdict(findings), style="bold" if is_healthy(findings) else "bold red"))
    console.print(Group(*parts))


def _findings_table(findings: Sequence[Finding]) -> Table:
    table = Table(box=SIMPLE, pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("where", max_width=WHERE_WIDTH)
    table.add_column("what", no_wrap=True)
    table.add_column("seen", overflow="fold")
    for finding in findings:
        mark, style = MARK[finding.status]
        seen = Text(finding.seen)
        if finding.remedy and finding.status is not Status.OK:
            seen.append(f"\n-> {finding.remedy}", style="cyan")
        table.add_row(Text(mark, style=style), finding.where, finding.name, seen)
    return table


def _ways_tables(ways: Sequence[TransportMeasurement]) -> Iterator[Table]:
    """A table per pair of replicas, with a row per transport."""
    for (receiver, sender), pair in groupby(ways, key=lambda way: (way.receiver, way.sender)):
        title = f"{sender} -> {receiver}, in GB/s"
        table = Table(title=title, title_justify="left", box=SIMPLE, pad_edge=False)
        table.add_column("transport", no_wrap=True)
        table.add_column("first piece", justify="right", no_wrap=True)
        of_pair = tuple(pair)
        sizes = sorted({size.num_bytes for way in of_pair for size in way.sizes})
        for num_bytes in sizes:
            table.add_column(_bytes(num_bytes), justify="right", no_wrap=True)
        table.add_column("taken, or why not", overflow="fold")
        for way in of_pair:
            latency = "-" if way.latency_s is None else f"{way.latency_s * 1e3:.2f} ms"
            rates = {size.num_bytes: _rate(size) for size in way.sizes}
            cells = [rates.get(num_bytes, "-") for num_bytes in sizes]
            table.add_row(way.transport, latency, *cells, Text(way.error or way.chosen))
        yield table


def _rate(size: Size) -> str:
    return f"{size.bytes_per_s / 1e9:.2f}"


def _bytes(num_bytes: int) -> str:
    mebibytes = num_bytes / (1 << 20)
    return f"{mebibytes:.0f} MiB" if mebibytes >= 1 else f"{num_bytes / 1024:.0f} KiB"
