"""Options of commands that generate load, and their help panels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer


def panel(title: str) -> Callable[..., Any]:
    """A factory of options in this panel, with the arguments of `typer.Option`."""
    return partial(typer.Option, rich_help_panel=title)


of_output = panel("Goodput and output")

JsonFile = Annotated[Path | None, of_output("--json", help="Write the result there.")]
PlotFile = Annotated[
    Path | None, of_output("--plot", help="Draw it there, as PNG: needs baton-llm\\[plots].")
]
InTime = Annotated[
    float, of_output("--slo-ttft", min=0.0, help="Seconds within which a first token is in time.")
]
