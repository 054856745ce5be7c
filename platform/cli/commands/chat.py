"""`baton chat`: a conversation in the terminal, over the gRPC SDK."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from baton.client.client import BatonClient
from baton.client.errors import BatonClientError, InvalidRequest, Unavailable
from baton.client.options import ChatOptions
from baton.platform.cli.terminal.errors import complain

console = Console(highlight=False)


def chat(  # noqa: PLR0913 - one parameter an option
    url: Annotated[str, typer.Option(help="host:port of the gRPC service.")] = "localhost:8001",
    system: Annotated[str, typer.Option(help="A system message to begin with.")] = "",
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Length of an answer.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same answer.")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="BATON_API_KEY", help="If the server asks for one.")
    ] = None,
    tls: Annotated[bool, typer.Option("--tls", help="Encrypt the connection.")] = False,
    ca_cert: Annotated[
        Path | None, typer.Option(help="PEM of who signed the server's certificate.", exists=True)
    ] = None,
) -> None:
    """Chat with the served model. An empty line or Ctrl-D ends; Ctrl-C stops an answer."""
    options: ChatOptions = {}
    if temperature is not None:
        options["temperature"] = temperature
    if max_tokens is not None:
        options["max_tokens"] = max_tokens
    if seed is not None:
        options["seed"] = seed
    messages = [{"role": "system", "content": system}] if system else []
    is_encrypted = tls or ca_cert is not None
    with BatonClient(url, api_key=api_key, tls=is_encrypted, ca_cert=ca_cert) as client:
        while question := _ask():
            messages.append({"role": "user", "content": question})
            answer: list[str] = []
            try:
                with client.stream_chat(messages, **options) as stream:
                    for delta in stream:
                        answer.append(delta.text)
                        console.print(delta.text, end="", markup=False, soft_wrap=True)
            except KeyboardInterrupt:
                console.print(" [dim](stopped)[/dim]", end="")
            except Unavailable as error:
                complain("baton chat", f"{url}: {error.message}; choose another with --url")
                raise typer.Exit(1) from None
            except BatonClientError as error:
                complain("baton chat", error.message)
                raise typer.Exit(2 if isinstance(error, InvalidRequest) else 1) from None
            console.print()
            messages.append({"role": "assistant", "content": "".join(answer)})


def _ask() -> str:
    try:
        return console.input("[bold green]> [/bold green]").strip()
    except (EOFError, KeyboardInterrupt):
        return ""
