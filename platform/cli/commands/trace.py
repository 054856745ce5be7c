"""`baton trace`: shows one forward pass, stage by stage."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from baton.platform.cli.options.completion import complete_model
from baton.platform.cli.options.config_options import MODEL_OPTIONS, with_config_options
from baton.platform.cli.terminal.errors import errors_in_one_line, warnings_silenced
from baton.platform.cli.terminal.progress import download_bars
from baton.platform.config.deployment import configure
from baton.platform.models.model_folder import find_model


@with_config_options(MODEL_OPTIONS)
def trace(  # noqa: PLR0913 - one parameter an option
    changes: dict[str, Any],
    model: Annotated[
        str,
        typer.Argument(
            help="Model folder, Hugging Face id, or `demo`.", autocompletion=complete_model
        ),
    ],
    prompt: Annotated[str, typer.Argument(help="The text that the model reads.")],
    html: Annotated[
        Path | None, typer.Option(help="Write a page there: all layers and heads, in one file.")
    ] = None,
    every_layer: Annotated[
        bool, typer.Option("--layers", help="Stages of every layer, not of the first alone.")
    ] = False,
    chat: Annotated[
        bool, typer.Option("--chat", help="The prompt is a message of a user.")
    ] = False,
    mtp: Annotated[
        bool,
        typer.Option(
            "--mtp",
            help="The token after the next as well, by the head that predicts it (DeepSeek V3).",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="All of it as one JSON object.")] = False,
) -> None:
    """Show a prompt's forward pass: tokens, shapes, the cost of each stage, the last token's
    attention, chosen experts, and each layer's prediction (logit lens).
    """
    with errors_in_one_line("baton trace"):
        config = configure(None, {**changes, "model": model})
        with download_bars() as bars:
            folder = find_model(model, wants_weights=config.wants_weights, report=bars)
        from baton.platform.cli.runs.trace import Job, run  # torch is imported from here on

        with warnings_silenced():
            run(
                config,
                folder,
                Job(
                    prompt=prompt,
                    html=html,
                    every_layer=every_layer,
                    is_chat=chat,
                    is_json=as_json,
                    wants_after=mtp,
                ),
            )
