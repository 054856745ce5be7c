"""`baton models`: what can be served from here, and which architectures can be served at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from baton.platform.cli.terminal.errors import errors_in_one_line

if TYPE_CHECKING:  # torch is imported when the command runs
    from baton.platform.models.model_listing import ListedModel

SIZES = ("", "k", "M", "G", "T")


def models(
    families: Annotated[
        bool, typer.Option("--families", help="List the supported architectures instead.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List models that come with Baton or are in the Hugging Face cache."""
    with errors_in_one_line("baton models"):
        if families:
            _show_families(is_json=as_json)
        else:
            _show_models(is_json=as_json)


def _show_families(*, is_json: bool) -> None:
    from baton.engine.models.registry import ARCHITECTURES, family_of

    described = {name: family_of(name).description for name in ARCHITECTURES}
    if is_json:
        typer.echo(_json(described))
        return
    table = Table("architecture", "", box=SIMPLE, pad_edge=False)
    for name, description in described.items():
        table.add_row(name, description)
    Console(highlight=False).print(table)


def _show_models(*, is_json: bool) -> None:
    from baton.platform.models.model_listing import list_models

    listed = list_models()
    if is_json:
        rows = [
            {**msgspec.to_builtins(one, enc_hook=str), "is_supported": not one.problem}
            for one in listed
        ]
        typer.echo(_json(rows))
        return
    table = Table(box=SIMPLE, pad_edge=False)
    table.add_column("model", overflow="fold")
    table.add_column("architecture", no_wrap=True)
    for name in ("parameters", "dtype", "size", "context"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for one in listed:
        table.add_row(*_cells(one))
    Console(highlight=False).print(table)


def _cells(one: ListedModel) -> list[str | Text]:
    return [
        one.name,
        one.architecture,
        _parameters(one),
        one.dtype,
        f"{_short(one.size_bytes, 1024)}B",
        str(one.max_model_len or ""),
        Text(one.problem, "red") if one.problem else Text("supported", "green"),
    ]


def _parameters(one: ListedModel) -> str:
    """46.7B, 12.9B active"""
    number = _short(one.num_parameters, 1000)
    if not 0 < one.num_active < one.num_parameters:
        return number
    return f"{number}, {_short(one.num_active, 1000)} active"


def _short(number: float, base: int) -> str:
    """4.5M"""
    for size in SIZES:
        if number < base or size == SIZES[-1]:
            return f"{number:.0f}" if not size else f"{number:.1f}{size}"
        number /= base
    raise AssertionError("the last size is for everything")


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode()
