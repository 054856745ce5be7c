"""`baton profile`: where the time of an engine's steps goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from baton.platform.cli.options.completion import complete_model
from baton.platform.cli.options.config_options import (
    ADAPTER,
    ENGINE_OPTIONS,
    MODEL_OPTIONS,
    SPECULATION_OPTIONS,
    with_config_options,
)
from baton.platform.cli.terminal.errors import errors_in_one_line, warnings_silenced
from baton.platform.cli.terminal.progress import download_bars
from baton.platform.config.deployment import configure
from baton.platform.models.adapter_folders import with_adapters
from baton.platform.models.draft_folder import with_draft
from baton.platform.models.model_folder import find_model


@with_config_options((*MODEL_OPTIONS, ADAPTER, *ENGINE_OPTIONS, *SPECULATION_OPTIONS))
def profile(
    changes: dict[str, Any],
    model: Annotated[
        str,
        typer.Argument(
            help="Model folder, Hugging Face id, or `demo`.", autocompletion=complete_model
        ),
    ],
    requests: Annotated[int, typer.Option(min=1, help="That come at once.")] = 8,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Of each.")] = 256,
    output_tokens: Annotated[int, typer.Option(min=1, help="Of each.")] = 64,
    trace_file: Annotated[
        Path | None,
        typer.Option("--trace", help="Write a Chrome trace there: ui.perfetto.dev opens it."),
    ] = None,
) -> None:
    """Run some requests through one engine in this process, and show what each step spent its
    time on: schedule, batch, the parts of the model, sampling, and the Python around them.

    Every request has other tokens; with --speculate they are source code, so that there is
    something to guess, and what became of drafts is shown. On a GPU torch's profiler watches, and
    its trace is written.
    """
    with errors_in_one_line("baton profile"):
        config = configure(None, {**changes, "model": model})
        with download_bars() as bars:
            folder = find_model(model, wants_weights=config.wants_weights, report=bars)
            config = with_draft(config, folder, wants_weights=config.wants_weights, report=bars)
            config = with_adapters(config, bars)
        from baton.platform.cli.runs.profile import Job, run  # torch is imported from here on

        job = Job(
            num_requests=requests,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            trace_file=trace_file,
        )
        with warnings_silenced():
            run(config, folder, job)
