"""`baton generate`: continues prompts in one process, without a server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from baton.core.errors import InvalidRequest
from baton.core.sampling import Grammar
from baton.gateway.grammars.structured_output import StructuredOutputs, output_rule
from baton.gateway.requests.options import SamplingOptions
from baton.platform.cli.options.completion import complete_model
from baton.platform.cli.options.config_options import (
    ADAPTER,
    ENGINE_OPTIONS,
    MODEL_OPTIONS,
    SPECULATION_OPTIONS,
    with_config_options,
)
from baton.platform.cli.options.sampling_flags import with_sampling_options
from baton.platform.cli.terminal.errors import errors_in_one_line, warnings_silenced
from baton.platform.cli.terminal.progress import download_bars
from baton.platform.config.deployment import configure
from baton.platform.models.adapter_folders import with_adapters
from baton.platform.models.draft_folder import with_draft
from baton.platform.models.model_folder import find_model


@with_config_options((*MODEL_OPTIONS, ADAPTER, *ENGINE_OPTIONS, *SPECULATION_OPTIONS))
@with_sampling_options("options")
def generate(  # noqa: PLR0913 - one parameter an option
    changes: dict[str, Any],
    options: SamplingOptions,
    model: Annotated[
        str,
        typer.Argument(
            help="Model folder, Hugging Face id, or `demo`.", autocompletion=complete_model
        ),
    ],
    prompts: Annotated[
        list[str] | None,
        typer.Argument(help="`-` stands for the lines of standard input, the default."),
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Prompts are messages of a user.")] = False,
    system: Annotated[str, typer.Option(help="A system message before each; means --chat.")] = "",
    json_schema: Annotated[
        Path | None,
        typer.Option(
            help="File with a JSON schema that the text must follow.", exists=True, dir_okay=False
        ),
    ] = None,
    regex: Annotated[str | None, typer.Option(help="Expression that the text must match.")] = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="Tell on standard error what it took.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON object for each prompt, on a line of its own.")
    ] = False,
) -> None:
    """Continue prompts offline, in this process: no server, no Ray, no ports."""
    texts = list(texts_of(prompts or ["-"], sys.stdin))
    with errors_in_one_line("baton generate"):
        config = configure(None, {**changes, "model": model})
        with download_bars() as bars:
            folder = find_model(model, wants_weights=config.wants_weights, report=bars)
            config = with_draft(config, folder, report=bars)
            config = with_adapters(config, bars)
        from baton.platform.cli.runs.generate import Job, run  # torch is imported from here on

        job = Job(
            prompts=texts,
            options=options,
            grammar=_grammar(json_schema, regex),
            system=system,
            is_chat=chat or bool(system),
            is_json=as_json,
            has_stats=stats,
        )
        with warnings_silenced():
            status = asyncio.run(run(config, folder, job))
    raise typer.Exit(status)


def _grammar(json_schema: Path | None, regex: str | None) -> Grammar | None:
    """Raises InvalidRequest, with the API's messages."""
    if json_schema is None and regex is None:
        return None
    if json_schema is not None and regex is not None:
        raise InvalidRequest("--json-schema and --regex exclude each other; leave one out")
    text = None if json_schema is None else json_schema.read_text()
    rule = output_rule(None, StructuredOutputs(json=text, regex=regex))
    return None if rule is None else rule.grammar


def texts_of(prompts: Iterable[str], stdin: TextIO) -> Iterator[str]:
    """Prompts, with `-` replaced by the lines of standard input. If that is a terminal, a hint is
    printed."""
    for prompt in prompts:
        if prompt != "-":
            yield prompt
            continue
        if stdin.isatty():
            typer.echo("prompts from standard input, one a line; Ctrl-D ends them", err=True)
        yield from (text for line in stdin if (text := line.rstrip("\r\n")))
