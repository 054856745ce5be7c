"""`baton verify`: loads the model once, runs all cases, prints the table."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import torch
import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from baton.core.errors import InvalidConfig
from baton.core.replicas import Role
from baton.engine.assemble import engine_around, find_device, load_draft
from baton.engine.checkpoint.install import order_of_sums
from baton.engine.checkpoint.load import LoadedModel, load_model
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.speculation.assemble import Drafting
from baton.kv_transfer.transports import usable_transports
from baton.platform.cli.terminal.progress import weights_bar
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.models.adapter_folders import folders_here
from baton.platform.verify.cases import CASES
from baton.platform.verify.near_tie import gap_bound_of
from baton.platform.verify.run import verify
from baton.platform.verify.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Trial:
    """The cases and transports asked for; all by default."""

    transports: Sequence[str] = ()
    cases: Sequence[str] = ()
    tolerance: float | None = None


def run(config: DeploymentConfig, folder: Path, trial: Trial, *, is_json: bool) -> bool:
    """Run the trial; whether every case passed. Raises CheckpointError or InvalidConfig."""
    transports = _chosen("--transport", trial.transports, usable_transports())
    names = _chosen("--case", trial.cases, [case.name for case in CASES])
    device = find_device(config.device)
    with weights_bar(config.model_name) as progress:
        loaded = load_model(
            folder,
            dtype=config.dtype,
            device=device,
            load_format=config.load_format,
            quantize=config.quantize,
            deterministic=config.deterministic,
            streaming=config.streaming,
            adapters=folders_here(config),
            progress=progress,
        )
    draft = load_draft(config.decode.speculation, folder, loaded, device)
    tolerance = trial.tolerance
    if tolerance is None:
        tolerance = gap_bound_of(loaded, device)
    verifying = verify(
        partial(_make_engine, loaded, device, draft=draft),
        loaded.info,
        config,
        transports,
        [case for case in CASES if case.name in names],
        tolerance=tolerance,
    )
    verdicts = asyncio.run(_collect(verifying))
    sums = order_of_sums(device, getattr(torch, loaded.info.dtype))
    if is_json:
        word = sums.removeprefix(", sums of ")
        rows = [
            {**msgspec.to_builtins(one), "is_good": one.is_good, "sums": word} for one in verdicts
        ]
        typer.echo(msgspec.json.format(msgspec.json.encode(rows)).decode())
    else:
        method = config.decode.speculation.method
        drafting = "" if method == "off" else f", drafted by {method}"
        title = f"{config.model_name}, {loaded.info.dtype}{sums}{drafting}"
        show(Console(highlight=False), verdicts, title)
    return all(verdict.is_good for verdict in verdicts)


def _chosen(option: str, names: Sequence[str], known: Sequence[str]) -> Sequence[str]:
    for name in names:
        if name not in known:
            names_known = ", ".join(map(repr, known))
            raise InvalidConfig(f"there is no {name!r}; choose {option} from {names_known}")
    return names or known


def _make_engine(
    loaded: LoadedModel, device: str, role: Role, config: EngineConfig, *, draft: Drafting | None
) -> Engine:
    return engine_around(loaded, config, device, draft=draft)


async def _collect(verifying: AsyncIterator[Verdict]) -> list[Verdict]:
    verdicts: list[Verdict] = []
    with Console(stderr=True).status("asking one engine alone") as status:
        async for verdict in verifying:
            verdicts.append(verdict)
            status.update(f"{len(verdicts)} cases tried; the last: {verdict.case}")
    return verdicts


def show(console: Console, verdicts: Sequence[Verdict], title: str) -> None:
    """Show a row per case, and the problems of failed cases below the table."""
    console.print(_table(verdicts, title))
    for one in verdicts:
        found = [*one.problems, *([str(one.first_difference)] if one.first_difference else [])]
        if found:
            console.print(Text(f"{one.transport}, {one.case}: {'; '.join(found)}", "red"))


def _table(verdicts: Sequence[Verdict], title: str) -> Table:
    table = Table(title=title, box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("transport", "case"):
        table.add_column(name, no_wrap=True)
    has_drafts = any(one.num_drafted for one in verdicts)
    has_ties = any(one.num_near_ties for one in verdicts)
    optional = [*(["drafts\nright"] if has_drafts else []), *(["near\nties"] if has_ties else [])]
    for name in ("equal", "KV bytes", *optional, "ms"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for one in verdicts:
        right = f"{one.num_accepted / one.num_drafted:.0%}" if one.num_drafted else "-"
        table.add_row(
            one.transport,
            one.case,
            f"{one.num_equal}/{one.num_prompts}",
            f"{one.kv_bytes}",
            *([right] if has_drafts else []),
            *([f"{one.num_near_ties}"] if has_ties else []),
            f"{one.ms:.0f}",
            Text("good", "green") if one.is_good else Text("wrong", "red"),
        )
    return table
