"""`baton replay`: simulates a capture under each policy, and compares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from baton.core.errors import InvalidConfig
from baton.core.wording import count_of
from baton.platform.cli.terminal.output_files import check_writable
from baton.platform.simulator.replay import Replayed, replay
from baton.platform.traces.capture import Capture, read_capture


def run(file: Path, policies: Sequence[str], slo_ttft_s: float, json_file: Path | None) -> None:
    """Raises InvalidConfig that names the file or the option."""
    if json_file is not None:
        check_writable(json_file, "--json")
    try:
        capture = read_capture(file)
    except OSError as error:
        raise InvalidConfig(
            f"CAPTURE {file}: {error.strerror}; give what GET /debug/decisions answers"
        ) from None
    names = dict.fromkeys((capture.head.policy, *policies))
    found = [replay(capture, name, slo_ttft_s) for name in names]
    _show(Console(highlight=False), capture, found)
    if json_file is not None:
        encoded = msgspec.json.encode([_tree(one) for one in found])
        json_file.write_bytes(msgspec.json.format(encoded) + b"\n")


def _show(console: Console, capture: Capture, found: Sequence[Replayed]) -> None:
    first = found[0]
    console.print(
        f"{capture.trace.name}: {count_of(len(first.requests), 'request', form=',')} on "
        f"{count_of(len(capture.head.replicas), 'replica')}, under {first.captured_policy}; in "
        f"time: first token within {first.slo_ttft_s:g} s"
    )
    if first.num_left_out:
        console.print(
            f"left out: {first.num_left_out} whose prompts other replicas computed, or ones that "
            "have left"
        )
    console.print(table_of(found))


def table_of(found: Sequence[Replayed]) -> Table:
    """A row for the capture, and one per policy."""
    first = found[0]
    table = Table("policy", box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for title in ("in time", "gained", "lost", "median s", "p99 s"):
        table.add_column(title, justify="right")
    was_s = [one.was_s for one in first.requests if one.was_s is not None]
    table.add_row("as captured", f"{first.num_met:,}", "", "", *_percentiles(was_s))
    for one in found:
        would_be_s = [request.would_be_s for request in one.requests]
        table.add_row(
            f"{one.policy}, simulated",
            f"{one.num_would_meet:,}",
            f"{len(one.gained):,}",
            f"{len(one.lost):,}",
            *_percentiles(would_be_s),
        )
    return table


def _percentiles(seconds: Sequence[float]) -> tuple[str, ...]:
    if not seconds:
        return ("-", "-")
    return tuple(f"{one:.3f}" for one in np.percentile(seconds, (50, 99)))


def _tree(one: Replayed) -> dict[str, Any]:
    return {
        **asdict(one),
        "num_met": one.num_met,
        "num_would_meet": one.num_would_meet,
        "gained": one.gained,
        "lost": one.lost,
    }
