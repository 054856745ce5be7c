"""`baton bench serve`: a load on any endpoint that speaks OpenAI's API."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from baton.platform.cli.options.gateway_options import CaFile
from baton.platform.cli.terminal.errors import INTERRUPTED, told_in_one_line
from baton.platform.load_generator.arrivals import Arrivals
from baton.platform.load_generator.dialect import Api
from baton.platform.load_generator.generator import SendOptions
from baton.platform.load_generator.slo import Slo
from baton.platform.load_generator.workload import LoadOptions, Synthetic

LOAD, SIZES, SERVER, OUTPUT = "Load", "Sizes without a trace", "Server", "Goodput and output"


def serve(  # noqa: PLR0913 - one parameter an option
    url: Annotated[str, typer.Argument(help="Of the server, such as http://localhost:8000.")],
    rate: Annotated[
        float | None,
        typer.Option(min=1e-6, help="Open loop: requests a second.", rich_help_panel=LOAD),
    ] = None,
    burstiness: Annotated[
        float,
        typer.Option(
            min=0.01,
            help="Shape of the gamma gaps: 1 is Poisson, less is more clumped.",
            rich_help_panel=LOAD,
        ),
    ] = 1.0,
    constant: Annotated[
        bool, typer.Option("--constant", help="The same gap always.", rich_help_panel=LOAD)
    ] = False,
    burst: Annotated[
        int, typer.Option(min=1, help="Requests that come together.", rich_help_panel=LOAD)
    ] = 1,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Closed loop: so many at once, sessions where a trace has them.",
            rich_help_panel=LOAD,
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Mooncake's JSON lines, Azure's CSV, or sessions; .gz, too.",
            rich_help_panel=LOAD,
        ),
    ] = None,
    time_scale: Annotated[
        float,
        typer.Option(min=1e-6, help="Of the trace: 0.5 is twice as fast.", rich_help_panel=LOAD),
    ] = 1.0,
    jitter: Annotated[
        bool,
        typer.Option(help="Spread arrivals that the trace rounded.", rich_help_panel=LOAD),
    ] = True,
    num_requests: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="To send at most.",
            show_default="200, or the whole trace, or all of --duration",
            rich_help_panel=LOAD,
        ),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(min=0.01, help="Send for so many seconds.", rich_help_panel=LOAD),
    ] = None,
    warmup: Annotated[
        int, typer.Option(min=0, help="Requests before, not counted.", rich_help_panel=LOAD)
    ] = 1,
    seed: Annotated[
        int, typer.Option(min=0, help="Same seed, same load.", rich_help_panel=LOAD)
    ] = 0,
    input_length: Annotated[
        int, typer.Option(min=1, help="Tokens of a prompt.", rich_help_panel=SIZES)
    ] = 512,
    output_length: Annotated[
        int, typer.Option(min=1, help="Tokens of an answer.", rich_help_panel=SIZES)
    ] = 128,
    length_spread: Annotated[
        float,
        typer.Option(
            min=0.0, max=1.0, help="0.5: evenly from half to one and a half.", rich_help_panel=SIZES
        ),
    ] = 0.0,
    shared_prefix: Annotated[
        int,
        typer.Option(min=0, help="Tokens before it, the same for many.", rich_help_panel=SIZES),
    ] = 0,
    prefixes: Annotated[
        int, typer.Option(min=1, help="Shared prefixes to draw from.", rich_help_panel=SIZES)
    ] = 1,
    endpoint: Annotated[
        Api, typer.Option(help="Of OpenAI's API.", rich_help_panel=SERVER)
    ] = Api.COMPLETIONS,
    model: Annotated[
        str | None,
        typer.Option(help="Its name.", show_default="the first one listed", rich_help_panel=SERVER),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="A folder with the model's tokenizer.json: sizes are exact with it.",
            rich_help_panel=SERVER,
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar=["BATON_API_KEY", "OPENAI_API_KEY"],
            help="If the server asks for one.",
            rich_help_panel=SERVER,
        ),
    ] = None,
    ca_file: CaFile = None,
    timeout: Annotated[
        float, typer.Option(min=0.01, help="Seconds for one answer.", rich_help_panel=SERVER)
    ] = 600.0,
    retry: Annotated[
        bool,
        typer.Option(
            "--retry", help="Send again after a 429, when it says.", rich_help_panel=SERVER
        ),
    ] = False,
    slo_ttft: Annotated[
        float | None,
        typer.Option(min=0.0, help="Seconds to the first token.", rich_help_panel=OUTPUT),
    ] = None,
    slo_itl: Annotated[
        float | None,
        typer.Option(min=0.0, help="Seconds of 99 % of a request's gaps.", rich_help_panel=OUTPUT),
    ] = None,
    slo_tpot: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Seconds a token of a request, on average.", rich_help_panel=OUTPUT
        ),
    ] = None,
    slo_e2e: Annotated[
        float | None,
        typer.Option(min=0.0, help="Seconds to the last token.", rich_help_panel=OUTPUT),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the result there.", rich_help_panel=OUTPUT)
    ] = None,
    raw_file: Annotated[
        Path | None,
        typer.Option(
            "--raw", help="Write every request there, as JSON lines.", rich_help_panel=OUTPUT
        ),
    ] = None,
    plot_file: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            help="Draw it there, as PNG: needs baton-llm\\[plots].",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """A load on any server with OpenAI's API: open loop, bursts, traces, sessions, closed loop.

    TTFT, ITL, TPOT and E2E at their percentiles, goodput under objectives with every error as a
    miss, cache hits, and how far the generator itself can be trusted. Ctrl-C ends it with what was
    measured so far.
    """
    with told_in_one_line("baton bench serve"):
        from baton.platform.cli.runs.bench_serve import Job, run  # aiohttp from here on

        arrivals = None
        if rate is not None:
            shape = None if constant else burstiness
            arrivals = Arrivals(rate=rate, burstiness=shape, burst=burst)
        job = Job(
            url=url,
            api=endpoint,
            model=model,
            api_key=api_key,
            ca_file=ca_file,
            tokenizer=tokenizer,
            trace=trace,
            load=LoadOptions(
                arrivals=arrivals,
                concurrency=concurrency,
                num_requests=num_requests,
                duration_s=duration,
                time_scale=time_scale,
                is_jittered=jitter,
                seed=seed,
                synthetic=Synthetic(
                    input_length=input_length,
                    output_length=output_length,
                    length_spread=length_spread,
                    shared_prefix=shared_prefix,
                    num_prefixes=prefixes,
                ),
            ),
            send=SendOptions(timeout_s=timeout, duration_s=duration, is_retried=retry),
            num_warmup=warmup,
            slo=Slo(ttft_s=slo_ttft, itl_s=slo_itl, tpot_s=slo_tpot, e2e_s=slo_e2e),
            json_file=json_file,
            raw_file=raw_file,
            plot_file=plot_file,
        )
        record = run(job)
    if record.is_interrupted:
        raise typer.Exit(INTERRUPTED)
    if not any(outcome.is_complete for outcome in record.outcomes):
        raise typer.Exit(1)
