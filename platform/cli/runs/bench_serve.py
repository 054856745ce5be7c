"""`baton bench serve`: probes the endpoint, sends the load, reports."""

from __future__ import annotations

import asyncio
import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console

from baton.platform.cli.terminal.load_view import shown
from baton.platform.cli.terminal.output_files import check_plots, check_writable
from baton.platform.load_generator.dialect import Api, Dialect
from baton.platform.load_generator.doubts import doubts
from baton.platform.load_generator.endpoint import Endpoint, connected
from baton.platform.load_generator.generator import LoadGenerator, Record, SendOptions
from baton.platform.load_generator.outcome import Outcome
from baton.platform.load_generator.plots import draw
from baton.platform.load_generator.probing import Probe, Probed
from baton.platform.load_generator.prompts import load_tokenizer
from baton.platform.load_generator.report import Setting, as_json, raw_lines, show, why_missed
from baton.platform.load_generator.slo import Slo
from baton.platform.load_generator.summary import summarize
from baton.platform.load_generator.workload import (
    LoadOptions,
    PlannedRequest,
    Workload,
    plan,
    warmup_requests,
)
from baton.platform.traces.reader import read_trace
from baton.platform.traces.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    url: str
    api: Api
    model: str | None
    api_key: str | None
    ca_file: Path | None
    tokenizer: Path | None
    trace: Path | None
    load: LoadOptions
    send: SendOptions
    num_warmup: int
    slo: Slo
    json_file: Path | None
    raw_file: Path | None
    plot_file: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRun:
    setting: Setting
    record: Record
    is_open_loop: bool


def run(job: Job) -> Record:
    """Raises InvalidConfig or Unavailable. Ctrl-C reports what was measured so far."""
    for file, option in (
        (job.json_file, "--json"),
        (job.raw_file, "--raw"),
        (job.plot_file, "--plot"),
    ):
        if file is not None:
            check_writable(file, option)
    if job.plot_file is not None:
        check_plots("--plot")
    trace = None if job.trace is None else read_trace(job.trace)
    job.load.check(trace)
    _allow_many_connections()
    ran = uvloop.run(_measure(job, trace))
    _print(job, ran)
    return ran.record


async def _measure(job: Job, trace: Trace | None) -> BenchRun:
    async with connected(job.url, job.api, api_key=job.api_key, ca_file=job.ca_file) as endpoint:
        dialect = Dialect(api=job.api, model=job.model or await endpoint.first_model())
        tokenizer = None if job.tokenizer is None else load_tokenizer(job.tokenizer)
        probe = Probe(endpoint, dialect, seed=job.load.seed, tokenizer=tokenizer)
        probed = await probe.run()
        compose = _composer(probed)
        await _warm_up(job, trace, endpoint, compose)
        workload = plan(job.load, trace)
        record = await _send(LoadGenerator(endpoint, compose, job.send), workload)
    setting = Setting(
        url=endpoint.url,
        endpoint=job.api.path,
        model=dialect.model,
        load=workload.about,
        sizing=probed.sizing,
        seed=job.load.seed,
        slo=job.slo,
        notes=probed.notes,
    )
    is_closed_loop = job.load.concurrency is not None or (trace and trace.is_closed_loop)
    return BenchRun(setting=setting, record=record, is_open_loop=not is_closed_loop)


def _composer(probed: Probed) -> Callable[[PlannedRequest], bytes]:
    def compose(request: PlannedRequest) -> bytes:
        return probed.dialect.body(probed.writer.write(request.prompt), request.output_length)

    return compose


async def _warm_up(
    job: Job,
    trace: Trace | None,
    endpoint: Endpoint,
    compose: Callable[[PlannedRequest], bytes],
) -> None:
    """Send warm-up requests, which are not counted, one after the other."""
    firsts = (request for chain in plan(job.load, trace).chains for request in chain.requests)
    for request in warmup_requests(firsts, job.num_warmup):
        async with asyncio.timeout(job.send.timeout_s):
            await endpoint.ask(compose(request))


async def _send(generator: LoadGenerator, workload: Workload) -> Record:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, generator.stop)
    try:
        async with shown(generator.record, workload.num_requests):
            return await generator.run(workload)
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _print(job: Job, ran: BenchRun) -> None:
    outcomes: list[Outcome] = ran.record.outcomes
    summary = summarize(ran.record, job.slo)
    doubted = doubts(summary, outcomes, is_open_loop=ran.is_open_loop)
    show(Console(highlight=False), ran.setting, summary, doubted, why_missed(outcomes))
    if job.json_file is not None:
        found = as_json(ran.setting, summary, doubted)
        job.json_file.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    if job.raw_file is not None:
        with job.raw_file.open("wb") as stream:
            stream.writelines(raw_lines(outcomes))
    if job.plot_file is not None:
        title = f"{ran.setting.model} at {ran.setting.url}: {ran.setting.load}"
        draw(outcomes, summary, job.slo, title, job.plot_file)


def _allow_many_connections() -> None:
    """Raise the limit of open files: an open loop has a socket per running answer."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
