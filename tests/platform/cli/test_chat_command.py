"""`baton chat` against a gateway with scripted answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import typer
from tests.gateway.certificates import make_certificate
from tests.gateway.scripted import Script, serving, text_of, tokens_of
from typer.testing import CliRunner

from baton.platform.cli.commands.chat import chat

app = typer.Typer()
app.command()(chat)


async def typed(lines: str, *arguments: str) -> Any:
    runner = CliRunner()
    return await asyncio.to_thread(runner.invoke, app, list(arguments), input=lines)


async def test_each_question_is_answered_with_what_was_said_before() -> None:
    text = "the [red]fox[:on:]\t."
    script = Script(tokens=tokens_of(text), ends_with_eos=True, num_per_update=99)
    async with serving(script) as gateway:
        result = await typed("Hello\nyou\n\n", "--url", gateway.grpc_target, "--seed", "7")

    assert result.exit_code == 0, result.output
    assert result.output.count(text) == 2
    first, second = gateway.dispatcher.generations
    assert (first.sampling.seed, second.sampling.seed) == (7, 7)
    assert text_of(second.prompt).startswith(text_of(first.prompt) + text)


async def test_a_mistake_is_told_in_one_line() -> None:
    async with serving() as gateway:
        result = await typed("Hello\n", "--url", gateway.grpc_target, "--temperature", "-1")

    assert result.exit_code == 2
    assert "temperature" in result.stderr
    assert "Traceback" not in result.output


def test_where_nobody_listens_another_target_is_asked_for() -> None:
    result = CliRunner().invoke(app, ["--url", "127.0.0.1:1"], input="hi\n")

    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1
    assert "with --url" in result.stderr


async def test_the_connection_can_be_encrypted(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    files: dict[str, Any] = {
        "tls_cert_file": str(made.cert_file),
        "tls_key_file": str(made.key_file),
    }
    async with serving(Script(tokens=tokens_of("the fox")), **files) as gateway:
        result = await typed(
            "Hello\n\n", "--url", gateway.grpc_target, "--ca-cert", str(made.cert_file)
        )

    assert "the fox" in result.output
