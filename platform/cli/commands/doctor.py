"""`baton doctor`: examines machines and deployments, and names remedies."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from baton.core.errors import Unavailable
from baton.platform.cli.options.gateway_options import ApiKey, CaFile, admin_pages
from baton.platform.cli.terminal.errors import errors_in_one_line, warnings_silenced
from baton.platform.config.deployment import DeploymentConfig, configure
from baton.platform.doctor.matrix import MAX_PAIRS
from baton.platform.observe.gateway_pages import GatewayPages


def doctor(
    config_file: Annotated[
        Path | None, typer.Option("-f", "--config", help="The deployment as a YAML file.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="A gateway's address for operators. Not given: the configured one."),
    ] = None,
    api_key: ApiKey = None,
    ca_file: CaFile = None,
    sample: Annotated[
        int,
        typer.Option(min=1, help="Of more pairs of replicas, measure so many, drawn at random."),
    ] = MAX_PAIRS,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Check this machine, and a running deployment if there is one, for problems. Every KV
    transport between replicas is measured; with many replicas, for some pairs. Exits with 1 if
    anything will not work.
    """
    with errors_in_one_line("baton doctor"), warnings_silenced():
        config = configure(config_file, {})
        key = api_key or min(config.gateway.operator_keys, default=None)
        pages = admin_pages(url, key, ca_file, config.gateway)
        asked = _Asked(is_asked=url is not None, sample=sample, as_json=as_json)
        is_healthy = asyncio.run(_examine(config, pages, asked))
    raise typer.Exit(0 if is_healthy else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    is_asked: bool
    """Whether to examine a running deployment, too."""
    sample: int
    as_json: bool


async def _examine(config: DeploymentConfig, pages: GatewayPages, asked: _Asked) -> bool:
    # Imported here, so that `baton --help` does not wait for torch.
    from baton.platform.doctor import report
    from baton.platform.doctor.finding import fail, is_healthy, skipped
    from baton.platform.doctor.run import examine_here, examine_live, examine_security

    console = Console(stderr=True)
    with console.status("looking at this machine"):
        status, trouble = await _status(pages)
        here, findings = await asyncio.to_thread(
            examine_here, config, is_serving=status is not None
        )
        security, finding = examine_security(config)
        findings.append(finding)
    ways = []
    if status is None:
        remedy = "start it with `baton serve`, then ask again; or give its address with --url"
        findings.append((fail if asked.is_asked else skipped)("deployment", trouble, remedy))
    elif security is not None:
        with console.status("measuring the ways between replicas"):
            live = await examine_live(config, security, status, here, max_pairs=asked.sample)
        findings += live.findings
        ways = live.ways
    if asked.as_json:
        typer.echo(msgspec.json.encode(report.as_json(findings, ways)).decode())
    else:
        report.show(Console(), findings, ways)
    return is_healthy(findings)


async def _status(pages: GatewayPages) -> tuple[dict[str, Any] | None, str]:
    """The gateway's /debug/status, or why it is not available."""
    try:
        return await asyncio.to_thread(pages.get, "/debug/status"), ""
    except Unavailable as error:
        return None, str(error)
