"""`baton trace`: loads the model, runs one pass, shows it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import typer
from rich.console import Console

from baton.engine.assemble import find_device
from baton.engine.checkpoint.load import load_model
from baton.engine.checkpoint.load_heads import load_mtp_head
from baton.gateway.text.served_model import ServedModel
from baton.platform.cli.terminal.output_files import check_writable
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.instruments.forward_trace.forward import trace_forward
from baton.platform.instruments.forward_trace.page import page
from baton.platform.instruments.forward_trace.table import show


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    prompt: str
    html: Path | None = None
    every_layer: bool = False
    is_chat: bool = False
    is_json: bool = False
    wants_after: bool = False


def run(config: DeploymentConfig, folder: Path, job: Job) -> None:
    """Raises CheckpointError, InvalidConfig or InvalidRequest."""
    if job.html is not None:
        check_writable(job.html, "--html")
    model = ServedModel.load(folder, config.model_name, chat_template=config.gateway.chat_template)
    text = job.prompt
    if job.is_chat:
        text = model.require_chat_template().render([{"role": "user", "content": text}])
    tokens = model.tokenizer.encode(text, add_special_tokens=not job.is_chat)
    device = find_device(config.device)
    with Console(stderr=True).status(f"reading {config.model_name}"):
        loaded = load_model(
            folder,
            dtype=config.dtype,
            device=device,
            load_format=config.load_format,
            quantize=config.quantize,
            deterministic=config.deterministic,
            streaming=config.streaming,
        )
        trace = trace_forward(
            loaded,
            model.tokenizer,
            tokens,
            name=config.model_name,
            device=device,
            mtp=load_mtp_head(folder, loaded, device=device) if job.wants_after else None,
        )
    if job.html is not None:
        job.html.write_text(page(trace), encoding="utf-8")
    if job.is_json:
        typer.echo(msgspec.json.encode(trace).decode())
        return
    console = Console(highlight=False, markup=False)
    show(console, trace, every_layer=job.every_layer)
    if job.html is not None:
        console.print(f"page: {job.html}")
