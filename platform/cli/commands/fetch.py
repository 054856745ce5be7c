"""`baton fetch`: downloads a model to this node before it is served."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from baton.core.errors import CheckpointError
from baton.platform.cli.options.completion import complete_model
from baton.platform.cli.terminal.errors import errors_in_one_line
from baton.platform.cli.terminal.progress import download_bars
from baton.platform.models.digest import digest_of, kind_of
from baton.platform.models.model_folder import find_adapter, find_model
from baton.platform.models.node_cache import listing_of


def fetch(
    model: Annotated[
        str,
        typer.Argument(
            help="Hugging Face id, or URL of a model's folder.", autocompletion=complete_model
        ),
    ],
    weights: Annotated[
        bool, typer.Option(help="Or what gateways need: tokenizer, configuration, templates.")
    ] = True,
    adapter: Annotated[bool, typer.Option("--adapter", help="It is a LoRA adapter.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read all of it again, and compare digests.")
    ] = False,
) -> None:
    """Fetch a model to this node, as a replica would, and print its folder."""
    with errors_in_one_line("baton fetch"):
        with download_bars() as bars:
            if adapter:
                folder = find_adapter(model, report=bars)
            else:
                folder = find_model(model, wants_weights=weights, report=bars)
        if verify:
            _verify(model, folder)
        typer.echo(folder)


def _verify(model: str, folder: Path) -> None:
    """Verify the files' digests. Raises CheckpointError for a damaged file, after deleting it."""
    listing = listing_of(folder)
    if listing is None:
        raise CheckpointError(
            f"{model} was not fetched by Baton, so there are no checksums to compare with; "
            "leave out --verify"
        )
    for file in listing.files:
        path = folder / file.name
        if path.exists() and file.digest and digest_of(path, kind_of(file.digest)) != file.digest:
            path.unlink()
            raise CheckpointError(
                f"{path} did not match its checksum and was deleted; run the command again to "
                "fetch it"
            )
