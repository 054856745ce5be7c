"""`baton generate`: loads the model, runs the prompts, prints.

standard output    the text as it is generated, prompt after prompt; or a JSON line each
standard error     progress, errors, and at the end statistics
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from baton.core.errors import BatonError, InvalidConfig
from baton.core.messages import Receipt
from baton.core.sampling import Grammar
from baton.core.wording import count_of
from baton.gateway.access.api_keys import ANYBODY
from baton.gateway.requests.completion_request import CompletionRequest, Prompt
from baton.gateway.requests.gateway import Gateway
from baton.gateway.requests.generations.choices import Completion
from baton.gateway.requests.options import SamplingOptions
from baton.gateway.text.output_text import TextDelta, merge
from baton.gateway.text.served_model import ServedModel
from baton.platform.cli.terminal.errors import complain, status_of
from baton.platform.cli.terminal.progress import weights_bar
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.offline.continuations import Continuation, continuations
from baton.platform.offline.offline import load_offline, offline_gateway


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    prompts: Sequence[str]
    options: SamplingOptions
    grammar: Grammar | None = None
    system: str = ""
    is_chat: bool = False
    is_json: bool = False
    has_stats: bool = False


@dataclass(slots=True)
class Outcome:
    """Statistics of the run."""

    receipts: list[Receipt] = field(default_factory=list)
    exit_status: int = 0
    """The exit status: the worst of all prompts."""


async def run(config: DeploymentConfig, folder: Path, job: Job) -> int:
    """Return the exit status. Raises CheckpointError or InvalidConfig if nothing can run."""
    if len(config.adapters) > 1:
        raise InvalidConfig(
            f"--adapter: prompts are continued with one adapter, not {len(config.adapters)}"
        )
    model = ServedModel.load(
        folder,
        config.model_name,
        adapters=config.adapters,
        needs_tokenizer=config.wants_weights,
        chat_template=config.gateway.chat_template,
    )
    with weights_bar(config.model_name) as progress:
        engine = await load_offline(config, folder, progress)
    async with offline_gateway(config, model, engine) as gateway:
        started, outcome = time.monotonic(), Outcome()
        begins = [partial(_begin, gateway, job, number) for number in range(len(job.prompts))]
        max_open = 2 * config.decode.scheduler.max_running
        async with continuations(begins, max_open=max_open) as found:
            for number, continuation in enumerate(found):
                await _print(continuation, job, number, outcome)
        if job.has_stats:
            _print_stats(outcome.receipts, time.monotonic() - started)
    return outcome.exit_status


async def _begin(gateway: Gateway, job: Job, number: int) -> Completion:
    """Raises InvalidRequest as the server would."""
    text = job.prompts[number]
    if job.is_chat:
        system = [{"role": "system", "content": job.system}] if job.system else []
        template = gateway.model.require_chat_template()
        text = template.render([*system, {"role": "user", "content": text}])
    tokens = await gateway.encode(text, add_special_tokens=not job.is_chat, prompt_field="prompt")
    adapter = next(iter(gateway.model.adapters), "")
    order = CompletionRequest(
        request_id=f"prompt-{number + 1}",
        prompts=(Prompt(tokens=tokens, field="prompt", text=text),),
        options=job.options,
        grammar=job.grammar,
        adapter=adapter,
        caller=ANYBODY,
    )
    return gateway.complete(order)


async def _print(continuation: Continuation, job: Job, number: int, outcome: Outcome) -> None:
    """Print one prompt's text as it is generated, or as JSON at its end."""
    is_one_of_many = len(job.prompts) > 1
    if is_one_of_many and not job.is_json:
        typer.echo(f"> {job.prompts[number]}")
    deltas: list[TextDelta] = []
    try:
        async for delta in continuation:
            deltas.append(delta)
            if not job.is_json:
                typer.echo(delta.text, nl=False)
    except BatonError as error:
        outcome.exit_status = max(outcome.exit_status, status_of(error))
        place = f"prompt {number + 1}: " if is_one_of_many else ""
        complain("baton generate", f"{place}{error}")
        if job.is_json:
            _print_json({"prompt": job.prompts[number], "error": str(error)})
        return
    outcome.receipts.append(continuation.receipt)
    if job.is_json:
        _print_json(_answer(continuation, job.prompts[number], merge(deltas)))
    else:
        typer.echo("\n" if is_one_of_many else "")


def _answer(continuation: Continuation, prompt: str, output: TextDelta) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "text": output.text,
        "token_ids": output.tokens,
        "finish_reason": output.finish_reason,
        "usage": continuation.usage,
        "receipt": continuation.receipt,
    }


def _print_json(value: object) -> None:
    typer.echo(msgspec.json.encode(value).decode())


def _print_stats(receipts: Sequence[Receipt], seconds: float) -> None:
    table = Table(box=SIMPLE, pad_edge=False)
    columns = ("prompt", "cached", "computed", "output", "queue ms", "prefill ms", "decode ms")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for one in receipts:
        tokens = (one.prompt_tokens, one.cached_tokens, one.computed_tokens, one.output_tokens)
        times = (one.queue_ms, one.prefill_ms, one.decode_ms)
        table.add_row(*map(str, tokens), *(f"{value:.1f}" for value in times))
    num_output = sum(receipt.output_tokens for receipt in receipts)
    console = Console(stderr=True, highlight=False)
    console.print(table)
    console.print(
        f"{count_of(num_output, 'token')} in {seconds:.2f} s: {num_output / seconds:.1f} tokens/s, "
        f"{count_of(len(receipts), 'prompt')}"
    )
