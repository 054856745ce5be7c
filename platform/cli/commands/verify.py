"""`baton verify`: a table of what was tried, and an exit status."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from baton.platform.cli.options.completion import complete_model
from baton.platform.cli.options.config_options import (
    MODEL_OPTIONS,
    SPECULATION_OPTIONS,
    ConfigOption,
    with_config_options,
)
from baton.platform.cli.terminal.errors import told_in_one_line, warnings_silenced
from baton.platform.cli.terminal.progress import download_bars
from baton.platform.config.deployment import configure
from baton.platform.models.draft_folder import with_draft
from baton.platform.models.model_folder import find_model

BLOCK_SIZE = ConfigOption(
    "--block-size", "Model", ("prefill.cache.block_size", "decode.cache.block_size")
)
KV_DTYPE = ConfigOption(
    "--kv-cache-dtype", "Model", ("prefill.cache.kv_dtype", "decode.cache.kv_dtype")
)


@with_config_options((*MODEL_OPTIONS, BLOCK_SIZE, KV_DTYPE, *SPECULATION_OPTIONS))
def verify(
    changes: dict[str, Any],
    model: Annotated[
        str,
        typer.Argument(
            help="Model folder, Hugging Face id, or `demo`.", autocompletion=complete_model
        ),
    ],
    transport: Annotated[
        list[str] | None, typer.Option(help="Try only this one; may be repeated.")
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option(help="Try only this one; may be repeated.")
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Nats between two tokens that make a near tie. "
            "[dim]\\[default: 0 where a row is computed in one way only, else what roundings "
            "of this model can make of it][/dim]"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON.")] = False,
) -> None:
    """Compare prefill and decode apart with one engine alone: tokens must be equal.

    Every KV transport is tried, cold, on a prefix hit, in chunks, without room for all, greedy and
    with a seed, and with outputs that repeat themselves; after each case every block must be
    accounted for. With --speculate the decoding side drafts, always as much as it may, and the
    engine alone does not; where outputs repeat, some drafts must be right. Exits with 1 if anything
    is off.

    In float32 unless --dtype says otherwise: narrower numbers round differently in other batches,
    which changes tokens where two are nearly as probable.
    """
    with told_in_one_line("baton verify"):
        config = configure(None, {"dtype": "float32", **changes, "model": model})
        with download_bars() as bars:
            folder = find_model(model, wants_weights=config.wants_weights, report=bars)
            config = with_draft(config, folder, report=bars)
        from baton.platform.cli.runs.verify import Trial, run  # torch is imported from here on

        with warnings_silenced():
            trial = Trial(transport or [], case or [], tolerance)
            is_good = run(config, folder, trial, is_json=as_json)
    raise typer.Exit(0 if is_good else 1)
