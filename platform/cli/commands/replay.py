"""`baton replay`: a gateway's captured load, under this policy or another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from baton.platform.cli.options.load_options import InTime, JsonFile
from baton.platform.cli.terminal.errors import errors_in_one_line


def replay(
    capture: Annotated[
        Path,
        typer.Argument(
            metavar="CAPTURE",
            help="What GET /debug/decisions of a gateway answers.",
            show_default=False,
        ),
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option(help="A policy's name; may be repeated.", show_default="the captured one"),
    ] = None,
    slo_ttft: InTime = 10.0,
    json_file: JsonFile = None,
) -> None:
    """Which requests of a captured load had their first token in time, and which would have.

    Arrivals, sizes and what prompts have in common are the captured ones; replicas compute them as
    fast as they last said they do, one after the other, and begin with empty caches. The captured
    policy shows how far that is from what came.
    """
    with errors_in_one_line("baton replay"):
        from baton.platform.cli.runs.replay import run  # numpy and the router from here on

        run(capture, policy or [], slo_ttft, json_file)
