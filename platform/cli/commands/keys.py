"""`baton keys`: an API key, and the line of it that a configuration or a file of keys may hold."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from baton.core.errors import InvalidConfig
from baton.gateway.access.key_entry import HASHED, SCOPES, digest_of, read_entry

KEY_BYTES = 32


def keys(
    name: Annotated[str, typer.Option(help="What logs call it.")] = "",
    days: Annotated[
        int | None, typer.Option(help="How long it is valid. Empty: for ever.", min=1)
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(help="inference, admin or metrics. Empty: what its place allows."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model, or alias, that it is for. Empty: what its place allows."),
    ] = None,
) -> None:
    """Draw an API key. Only its hash is to be kept where gateways run."""
    if name.split() not in ([], [name]) or "," in name:
        raise InvalidConfig(f"--name {name!r}: a key's name is one word, without spaces or commas")
    for one in model or ():
        if one.split() != [one] or set("+,") & set(one):
            raise InvalidConfig(
                f"--model {one!r}: a key's line cannot hold names with spaces, commas or `+`; set "
                "gateway.tenants.NAME.models instead, or give the model an alias"
            )
    key = f"bk_{secrets.token_urlsafe(KEY_BYTES)}"
    line = line_of(
        key, datetime.now(UTC), name=name, days=days, scopes=scope or (), models=model or ()
    )
    try:
        read_entry(line, SCOPES)
    except ValueError as error:
        raise InvalidConfig(f"a gateway would refuse the line of this key: {error}") from None
    typer.echo(f"key:  {key}")
    typer.echo(f"line: {line}")
    typer.echo(
        "\nGive the key to its user: it is shown once. The line goes into the file\n"
        "that gateway.api_keys, operator_keys or a tenant's api_keys name (`file:/path`);\n"
        "gateways read it again within seconds."
    )


def line_of(
    key: str,
    now: datetime,
    *,
    name: str,
    days: int | None,
    scopes: Sequence[str],
    models: Sequence[str] = (),
) -> str:
    words = [f"{HASHED}{digest_of(key).hex()}"]
    if name:
        words.append(f"name={name}")
    if days is not None:
        words.append(f"expires={(now + timedelta(days=days)).date().isoformat()}")
    if scopes:
        words.append(f"scopes={'+'.join(scopes)}")
    if models:
        words.append(f"models={'+'.join(models)}")
    return "  ".join(words)
