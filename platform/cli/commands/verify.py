"""`baton verify`: checks that disaggregated serving gives the tokens of one engine."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from baton.platform.cli.options.completion import complete_model
from baton.platform.cli.options.config_options import (
    ADAPTER,
    MODEL_OPTIONS,
    SPECULATION_OPTIONS,
    ConfigOption,
    with_config_options,
)
from baton.platform.cli.terminal.errors import errors_in_one_line, warnings_silenced
from baton.platform.cli.terminal.progress import download_bars
from baton.platform.config.deployment import configure
from baton.platform.models.adapter_folders import with_adapters
from baton.platform.models.draft_folder import with_draft
from baton.platform.models.model_folder import find_model

BLOCK_SIZE = ConfigOption(
    "--block-size", "Model", ("prefill.cache.block_size", "decode.cache.block_size")
)
KV_DTYPE = ConfigOption(
    "--kv-cache-dtype", "Model", ("prefill.cache.kv_dtype", "decode.cache.kv_dtype")
)


@with_config_options((*MODEL_OPTIONS, ADAPTER, BLOCK_SIZE, KV_DTYPE, *SPECULATION_OPTIONS))
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
    """Compare disaggregated prefill and decode with a single engine: tokens must be equal. Every KV
    transport is tried: cold, on a prefix hit, in chunks, short of blocks, greedy and seeded, and
    with repetitive outputs; after each case every block must be accounted for. With --speculate the
    decoding side drafts as much as it can and the single engine does not; with repetitive outputs
    some drafts must be accepted. Exits with 1 on any difference.

    The dtype is float32 unless --dtype is given: narrower dtypes round differently in other
    batches, which can change a token where two are nearly equally probable.
    """
    with errors_in_one_line("baton verify"):
        config = configure(None, {"dtype": "float32", **changes, "model": model})
        with download_bars() as bars:
            folder = find_model(model, wants_weights=config.wants_weights, report=bars)
            config = with_draft(config, folder, report=bars)
            config = with_adapters(config, bars)
        from baton.platform.cli.runs.verify import Trial, run  # torch is imported from here on

        with warnings_silenced():
            trial = Trial(transport or [], case or [], tolerance)
            is_good = run(config, folder, trial, is_json=as_json)
    raise typer.Exit(0 if is_good else 1)
