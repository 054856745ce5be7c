"""The report of `baton bench engine`: tables for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from baton.platform.instruments.ceilings import Ceilings
from baton.platform.instruments.engine_bench import Measured, Point
from baton.platform.instruments.pass_cost import total
from baton.platform.instruments.regime import BatchPoint, flattening
from baton.platform.machine.datasheet import Datasheet

PREFILL_COLUMNS = ("tokens", "ms", "tokens/s", "TFLOP/s", "share", "bound by")
DECODE_COLUMNS = (
    "context", "batch", "ms", "tokens/s", "GB/s", "read GB/s", "share", "bound by",
)  # fmt: skip
IN_CACHE = 1.05
"""A share of the limit above this is only possible with data in CPU caches."""


def show(
    console: Console, measured: Measured, ceilings: Ceilings, sheet: Datasheet, title: str
) -> None:
    console.print(title)
    console.print(
        f"ceilings measured here: {ceilings.read_bytes_s / 1e9:.0f} GB/s read, "
        f"{ceilings.flops_s / 1e12:.2f} TFLOP/s (ridge at {ceilings.ridge:.0f} FLOPs a byte); "
        f"datasheet of {sheet}"
    )
    if ceilings.flops_s_by_part:
        rates = (f"{part} {rate / 1e12:.2f}" for part, rate in ceilings.flops_s_by_part.items())
        console.print(f"TFLOP/s of products with narrow weights: {', '.join(rates)}")
    if measured.prefill:
        console.print(
            _table(
                "prefill of one prompt: share of the limit of arithmetic",
                PREFILL_COLUMNS,
                _prefill_rows(measured),
            )
        )
        _print_diagnoses(console, measured.prefill)
    if measured.decode:
        console.print(
            _table(
                "decode, a token for each of a batch: share of the limit",
                DECODE_COLUMNS,
                _decode_rows(measured),
            )
        )
        for context, curve in curves(measured.decode).items():
            console.print(f"context {context}: {curve}")
        _print_diagnoses(console, measured.decode)
    if any(point.diagnosis.share > IN_CACHE for point in (*measured.prefill, *measured.decode)):
        console.print(
            "Shares over 100%: a cache keeps some of what a step reads, or memory was faster then "
            "than just before and after."
        )
    for why in dict.fromkeys(one.why for one in measured.skipped):
        what = ", ".join(one.what for one in measured.skipped if one.why == why)
        console.print(f"skipped, because {why}: {what}", style="dim")


def as_json(
    measured: Measured, ceilings: Ceilings, sheet: Datasheet, model: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "model": dict(model),
        "ceilings": _ceilings(ceilings),
        "datasheet": {
            "device": sheet.name,
            "read_gb_s": sheet.read_gb_s,
            "bf16_tflop_s": sheet.bf16_tflop_s,
        },
        "prefill": [_point(point) for point in measured.prefill],
        "decode": [_point(point) for point in measured.decode],
        "curves": {str(context): curve for context, curve in curves(measured.decode).items()},
        "skipped": [{"what": one.what, "why": one.why} for one in measured.skipped],
    }


def curves(points: Sequence[Point]) -> dict[int, str]:
    """Where throughput over batch size flattens, and why, by context length."""
    return {
        context: _flattening(list(group))
        for context, group in groupby(points, key=lambda point: point.context)
    }


def _flattening(points: Sequence[Point]) -> str:
    batches = [
        BatchPoint(
            batch=point.batch,
            tokens_s=point.tokens_s,
            work=point.work,
            diagnosis=point.diagnosis,
        )
        for point in points
    ]
    return flattening(batches, points[-1].ceilings)


def _prefill_rows(measured: Measured) -> list[tuple[str, ...]]:
    return [
        (
            f"{point.context:,}",
            f"{point.seconds * 1e3:,.1f}",
            f"{point.tokens_s:,.0f}",
            f"{point.flops_s / 1e12:.3f}",
            f"{point.arithmetic_share:.0%}",
            str(point.diagnosis.regime).removesuffix(" bound"),
        )
        for point in measured.prefill
    ]


def _decode_rows(measured: Measured) -> list[tuple[str, ...]]:
    return [
        (
            f"{point.context:,}",
            f"{point.batch}",
            f"{point.seconds * 1e3:,.2f}",
            f"{point.tokens_s:,.0f}",
            f"{point.bytes_s / 1e9:.1f}",
            f"{point.ceilings.read_bytes_s / 1e9:.0f}",
            f"{point.diagnosis.share:.0%}",
            str(point.diagnosis.regime).removesuffix(" bound"),
        )
        for point in measured.decode
    ]


def _print_diagnoses(console: Console, points: Sequence[Point]) -> None:
    """Print each regime once, at its first point."""
    first_by_regime = {point.diagnosis.regime: point for point in reversed(points)}
    for regime, point in first_by_regime.items():
        where = f"{point.batch} x {point.context}"
        console.print(f"[bold]{regime}[/bold] ({where}): {point.diagnosis.reason}.")
        console.print(f"  try first: {point.diagnosis.experiment}.")


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(
        title=title, box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0), title_justify="left"
    )
    for column in columns:
        table.add_column(column, justify="left" if column == "bound by" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _ceilings(ceilings: Ceilings) -> dict[str, Any]:
    return {
        "read_gb_s": ceilings.read_bytes_s / 1e9,
        "tflop_s": ceilings.flops_s / 1e12,
        "tflop_s_by_part": {
            str(part): rate / 1e12 for part, rate in ceilings.flops_s_by_part.items()
        },
        "ridge_flops_per_byte": ceilings.ridge,
    }


def _point(point: Point) -> dict[str, Any]:
    work = total(point.work)
    return {
        "batch": point.batch,
        "context": point.context,
        "seconds": point.seconds,
        "tokens_s": point.tokens_s,
        "gb_s": point.bytes_s / 1e9,
        "tflop_s": point.flops_s / 1e12,
        "flops": work.flops,
        "bytes": work.num_bytes,
        "around_s": point.around_s,
        "ceilings": _ceilings(point.ceilings),
        "share_of_limit": point.diagnosis.share,
        "regime": str(point.diagnosis.regime),
        "reason": point.diagnosis.reason,
        "first_experiment": point.diagnosis.experiment,
        "parts": {
            str(part): {
                "flops": one.flops,
                "bytes": one.num_bytes,
                "floor_s": point.ceilings.floor_s(part, one.flops, one.num_bytes),
                "seconds": point.part_s.get(part),
            }
            for part, one in point.work.items()
        },
    }
