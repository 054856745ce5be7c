"""The roofline of a machine, and the parts of a model's passes below it (Williams et al. 2009).

FLOP/s |        ______________  matrix rate
       |      /  o     o          a part at its arithmetic intensity: the distance to the roof
       |    / o                   above it is what a better kernel could gain
       |  /
       +-------------------------  FLOPs a byte
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from baton.platform.instruments.ceilings import Ceilings
from baton.platform.instruments.engine_bench import Measured, Point
from baton.platform.instruments.pass_cost import total
from baton.platform.models.model_shape import Part

MARKER_OF = dict(zip(Part, "osD^vPX*<>hp", strict=True))
MIN_INTENSITY = 0.05


def draw(measured: Measured, ceilings: Ceilings, title: str, file: Path) -> None:
    """Draw the roofline (left), and throughput over batch size with its ceiling (right)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 6.5), layout="constrained")
    roof, curve = figure.subplots(1, 2)
    figure.suptitle(title)
    _draw_roof(roof, measured, ceilings)
    _draw_curves(curve, measured.decode)
    figure.savefig(file, dpi=110, format="png")


def _draw_roof(axes: Any, measured: Measured, ceilings: Ceilings) -> None:
    points = _telling(measured)
    intensities = [one.intensity for _, point in points for one in point.work.values()]
    top = 2 * max([ceilings.ridge * 8, *intensities])
    xs = [MIN_INTENSITY * (top / MIN_INTENSITY) ** (step / 60) for step in range(61)]
    roof = [min(ceilings.flops_s, x * ceilings.read_bytes_s) / 1e12 for x in xs]
    axes.loglog(xs, roof, color="black", label="roof, as measured here")
    for parts, rate in _higher_roofs(ceilings):
        narrow = [min(rate, x * ceilings.read_bytes_s) / 1e12 for x in xs]
        axes.loglog(xs, narrow, "--", color="black", alpha=0.6, label=f"roof of {parts}")
    for index, (name, point) in enumerate(points):
        color = f"C{index}"
        _draw_parts(axes, point, color)
        whole = total(point.work)
        label = f"{name} (circle: the whole step)"
        axes.plot(whole.intensity, point.flops_s / 1e12, "o", color=color, markersize=13,
                  fillstyle="none", label=label)  # fmt: skip
    for part, marker in MARKER_OF.items():
        if any(part in point.part_s for _, point in points):
            axes.plot([], [], marker, color="grey", label=str(part))
    axes.set(xlabel="FLOPs a byte", ylabel="TFLOP/s", title="roofline")
    axes.grid(visible=True, which="both", alpha=0.2)
    axes.legend(fontsize=8, loc="lower right")


def _higher_roofs(ceilings: Ceilings) -> list[tuple[str, float]]:
    """Rates other than the dtype's, each with its parts."""
    names: dict[float, list[str]] = {}
    for part, rate in ceilings.flops_s_by_part.items():
        if rate > ceilings.flops_s:
            names.setdefault(float(f"{rate:.2g}"), []).append(str(part))
    return [(", ".join(parts), rate) for rate, parts in sorted(names.items())]


def _draw_parts(axes: Any, point: Point, color: str) -> None:
    for part, one in point.work.items():
        took = point.part_s.get(part)
        if took and one.intensity >= MIN_INTENSITY:
            axes.plot(one.intensity, one.flops / took / 1e12, MARKER_OF[part], color=color,
                      markersize=7, alpha=0.8)  # fmt: skip


def _telling(measured: Measured) -> list[tuple[str, Point]]:
    """A point of each regime: the longest prefill, the smallest and the largest decode."""
    found: list[tuple[str, Point]] = []
    if measured.prefill:
        point = measured.prefill[-1]
        found.append((f"prefill of {point.context}", point))
    for point in (*measured.decode[:1], *measured.decode[-1:][: len(measured.decode) - 1]):
        found.append((f"decode of {point.batch} at {point.context}", point))
    return found


def _draw_curves(axes: Any, points: Sequence[Point]) -> None:
    for index, context in enumerate(dict.fromkeys(point.context for point in points)):
        chosen = [point for point in points if point.context == context]
        batches = [point.batch for point in chosen]
        axes.loglog(batches, [point.tokens_s for point in chosen], "o-", color=f"C{index}",
                    label=f"context {context}")  # fmt: skip
        limits = [point.tokens_s / point.diagnosis.share for point in chosen]
        axes.loglog(batches, limits, "--", color=f"C{index}", alpha=0.5)
    axes.set(xlabel="requests", ylabel="tokens/s", title="decode; dashed: the limit")
    axes.grid(visible=True, which="both", alpha=0.2)
    if points:
        axes.legend(fontsize=8)
