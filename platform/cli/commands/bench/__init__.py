"""`baton bench`: an engine against the machine's limits; any server under load."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from baton.platform.cli.commands.bench.serving import serve
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

app = typer.Typer(help="Measure an engine here, or a server anywhere.", no_args_is_help=True)

LENGTHS = (128, 512, 2048, 8192, 32_768)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (128, 1024, 4096)


class Measures(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"
    ALL = "all"


@app.callback()
def bench() -> None:
    """Measure an engine here, or a server anywhere."""


@app.command()
@with_config_options((*MODEL_OPTIONS, ADAPTER, *ENGINE_OPTIONS, *SPECULATION_OPTIONS))
def engine(  # noqa: PLR0913 - one parameter an option
    changes: dict[str, Any],
    model: Annotated[
        str,
        typer.Argument(
            help="Model folder, Hugging Face id, or `demo`.", autocompletion=complete_model
        ),
    ],
    measure: Annotated[Measures, typer.Option(help="Prompts, tokens, or both.")] = Measures.ALL,
    length: Annotated[
        list[int] | None, typer.Option(min=1, help="Of a prompt; may be repeated.")
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="Requests that decode; may be repeated.")
    ] = None,
    context: Annotated[
        list[int] | None, typer.Option(min=2, help="Of what decodes; may be repeated.")
    ] = None,
    max_seconds: Annotated[
        float, typer.Option(min=1, help="No measurement begins after so long.")
    ] = 120.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all of it there.")] = None,
    png_file: Annotated[
        Path | None, typer.Option("--png", help="Draw the roofline, and tokens/s over the batch.")
    ] = None,
) -> None:
    """One engine in this process: prefill by length, decode by batch and context.

    Each number comes with its ceiling, measured in the same minute, and its regime: bound by
    bandwidth, by arithmetic, by overhead around the model, or by its kernels. Random weights
    (--load-format dummy) are fine: speed depends on shapes alone. With --speculate also the gain of
    drafting on source code, and the acceptance of drafts.
    """
    with errors_in_one_line("baton bench engine"):
        config = configure(None, {**changes, "model": model})
        with download_bars() as bars:
            folder = find_model(model, wants_weights=config.wants_weights, report=bars)
            config = with_draft(config, folder, wants_weights=config.wants_weights, report=bars)
            config = with_adapters(config, bars)
        from baton.platform.cli.runs.bench import Job, run  # torch is imported from here on

        job = Job(
            lengths=sorted(length or LENGTHS) if measure is not Measures.DECODE else [],
            batches=sorted(batch or BATCHES) if measure is not Measures.PREFILL else [],
            contexts=sorted(context or CONTEXTS) if measure is not Measures.PREFILL else [],
            max_seconds=max_seconds,
            json_file=json_file,
            png_file=png_file,
        )
        with warnings_silenced():
            run(config, folder, job)


app.command()(serve)
