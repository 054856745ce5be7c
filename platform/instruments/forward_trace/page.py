"""A trace as one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path

import msgspec
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from baton.platform.instruments.forward_trace.table import spelled
from baton.platform.instruments.forward_trace.trace import ForwardTrace

TEMPLATE = Path(__file__).with_name("page.html")
PLACES = 4
"""Decimal places of attention weights, to limit the size of the page."""


def page(trace: ForwardTrace) -> str:
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.filters["spelled"] = spelled
    heats = [
        [[round(value, PLACES) for value in head] for head in (layer.mean_heat, *layer.heat)]
        for layer in trace.layers
    ]
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        trace=trace,
        words=_for_script([spelled(token) for token in trace.tokens]),
        heats=_for_script(heats),
        most_flops=max(stage.work.flops for stage in trace.stages) or 1.0,
        most_bytes=max(stage.work.num_bytes for stage in trace.stages) or 1.0,
    )


def _for_script(value: object) -> Markup:
    """JSON within a script: a token may spell the script's end."""
    text = msgspec.json.encode(value).decode()
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "").replace("\u2029", ""))
