"""Options that commands which play a load have in common, and the panels they are shown in."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer


def panel(title: str) -> Callable[..., Any]:
    """What makes an option of this panel; its arguments are those of `typer.Option`."""
    return partial(typer.Option, rich_help_panel=title)


of_output = panel("Goodput and output")

JsonFile = Annotated[Path | None, of_output("--json", help="Write the result there.")]
PlotFile = Annotated[
    Path | None, of_output("--plot", help="Draw it there, as PNG: needs baton-llm\\[plots].")
]
InTime = Annotated[
    float, of_output("--slo-ttft", min=0.0, help="Seconds within which a first token is in time.")
]
