"""`baton chat`: a conversation in the terminal, over the gRPC SDK."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from baton.client.client import BatonClient
from baton.client.errors import BatonClientError, InvalidRequest, Unavailable
from baton.client.options import ChatOptions
from baton.gateway.access.config import GatewayConfig
from baton.platform.cli.terminal.errors import complain

GRPC_PORT = GatewayConfig().grpc_port
console = Console(highlight=False)


def chat(  # noqa: PLR0913 - one parameter an option
    url: Annotated[
        str,
        typer.Option(help="The gRPC service: host:port, or http(s)://host:port. https encrypts."),
    ] = "localhost:8001",
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
    target, is_https = grpc_target(url)
    is_encrypted = tls or is_https or ca_cert is not None
    with BatonClient(target, api_key=api_key, tls=is_encrypted, ca_cert=ca_cert) as client:
        while question := _ask():
            messages.append({"role": "user", "content": question})
            answer: list[str] = []
            try:
                with client.stream_chat(messages, **options) as stream:
                    for delta in stream:
                        answer.append(delta.text)
                        console.file.write(delta.text)  # rich would interpret some text as markup
                        console.file.flush()
            except KeyboardInterrupt:
                console.print(" [dim](stopped)[/dim]", end="")
            except Unavailable as error:
                remedy = "choose another gRPC port (gateway.grpc_port, not HTTP's) with --url"
                complain("baton chat", f"{target}: {error.message}; {remedy}")
                raise typer.Exit(1) from None
            except BatonClientError as error:
                complain("baton chat", error.message)
                raise typer.Exit(2 if isinstance(error, InvalidRequest) else 1) from None
            console.print()
            messages.append({"role": "assistant", "content": "".join(answer)})


GRPC_NAME = re.compile(r"(dns|ipv4|ipv6|unix|unix-abstract|vsock):(?!\d+$)")
"""Targets in gRPC's own notation, which gRPC resolves itself."""


def grpc_target(url: str) -> tuple[str, bool]:
    """The gRPC target of a URL, and whether the URL asks for TLS."""
    if GRPC_NAME.match(url):
        return url, False
    scheme, separator, rest = url.rpartition("://")
    target = (rest if separator else url).partition("/")[0]
    _, colon, port = target.rpartition(":")
    has_port = colon and port.isdigit()
    return target if has_port else f"{target}:{GRPC_PORT}", scheme == "https"


def _ask() -> str:
    try:
        return console.input("[bold green]> [/bold green]").strip()
    except (EOFError, KeyboardInterrupt):
        return ""
