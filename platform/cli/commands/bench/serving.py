"""`baton bench serve`: a load on any endpoint that speaks OpenAI's API."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from baton.platform.cli.options.gateway_options import CaFile
from baton.platform.cli.options.load_options import JsonFile, PlotFile, of_output, panel
from baton.platform.cli.terminal.errors import INTERRUPTED, errors_in_one_line
from baton.platform.load_generator.arrivals import Arrivals
from baton.platform.load_generator.dialect import Api
from baton.platform.load_generator.generator import SendOptions
from baton.platform.load_generator.slo import Slo
from baton.platform.load_generator.workload import LoadOptions, Synthetic

of_load, of_sizes, of_server = panel("Load"), panel("Sizes without a trace"), panel("Server")


def serve(  # noqa: PLR0913 - one parameter an option
    url: Annotated[str, typer.Argument(help="Of the server, such as http://localhost:8000.")],
    rate: Annotated[
        float | None,
        of_load(min=1e-6, help="Open loop: requests a second."),
    ] = None,
    burstiness: Annotated[
        float,
        of_load(min=0.01, help="Shape of the gamma gaps: 1 is Poisson, less is more clumped."),
    ] = 1.0,
    constant: Annotated[bool, of_load("--constant", help="The same gap always.")] = False,
    burst: Annotated[int, of_load(min=1, help="Requests that come together.")] = 1,
    concurrency: Annotated[
        int | None,
        of_load(min=1, help="Closed loop: so many at once, sessions where a trace has them."),
    ] = None,
    trace: Annotated[
        Path | None,
        of_load(
            exists=True,
            dir_okay=False,
            help="Mooncake's JSON lines, Azure's CSV, or sessions; .gz, too.",
        ),
    ] = None,
    time_scale: Annotated[
        float,
        of_load(min=1e-6, help="Of the trace: 0.5 is twice as fast."),
    ] = 1.0,
    jitter: Annotated[
        bool,
        of_load(help="Spread arrivals that the trace rounded."),
    ] = True,
    num_requests: Annotated[
        int | None,
        of_load(
            min=1,
            help="To send at most.",
            show_default="200, or the whole trace, or all of --duration",
        ),
    ] = None,
    duration: Annotated[
        float | None,
        of_load(min=0.01, help="Send for so many seconds."),
    ] = None,
    warmup: Annotated[int, of_load(min=0, help="Requests before, not counted.")] = 1,
    seed: Annotated[int, of_load(min=0, help="Same seed, same load.")] = 0,
    input_length: Annotated[int, of_sizes(min=1, help="Tokens of a prompt.")] = 512,
    output_length: Annotated[int, of_sizes(min=1, help="Tokens of an answer.")] = 128,
    length_spread: Annotated[
        float,
        of_sizes(min=0.0, max=1.0, help="0.5: evenly from half to one and a half."),
    ] = 0.0,
    shared_prefix: Annotated[
        int,
        of_sizes(min=0, help="Tokens before it, the same for many."),
    ] = 0,
    prefixes: Annotated[int, of_sizes(min=1, help="Shared prefixes to draw from.")] = 1,
    endpoint: Annotated[Api, of_server(help="Of OpenAI's API.")] = Api.COMPLETIONS,
    model: Annotated[
        str | None,
        of_server(help="Its name.", show_default="the first one listed"),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        of_server(
            exists=True,
            file_okay=False,
            help="A folder with the model's tokenizer.json: sizes are exact with it.",
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        of_server(envvar=["BATON_API_KEY", "OPENAI_API_KEY"], help="If the server asks for one."),
    ] = None,
    ca_file: CaFile = None,
    timeout: Annotated[float, of_server(min=0.01, help="Seconds for one answer.")] = 600.0,
    retry: Annotated[
        bool,
        of_server("--retry", help="Send again after a 429, when it says."),
    ] = False,
    slo_ttft: Annotated[
        float | None,
        of_output(min=0.0, help="Seconds to the first token."),
    ] = None,
    slo_itl: Annotated[
        float | None,
        of_output(min=0.0, help="Seconds of 99 % of a request's gaps."),
    ] = None,
    slo_tpot: Annotated[
        float | None,
        of_output(min=0.0, help="Seconds a token of a request, on average."),
    ] = None,
    slo_e2e: Annotated[
        float | None,
        of_output(min=0.0, help="Seconds to the last token."),
    ] = None,
    json_file: JsonFile = None,
    raw_file: Annotated[
        Path | None,
        of_output("--raw", help="Write every request there, as JSON lines."),
    ] = None,
    plot_file: PlotFile = None,
) -> None:
    """A load on any server with OpenAI's API: open loop, bursts, traces, sessions, closed loop.

    TTFT, ITL, TPOT and E2E at their percentiles, goodput under objectives with every error as a
    miss, cache hits, and how far the generator itself can be trusted. Ctrl-C ends it with what was
    measured so far.
    """
    with errors_in_one_line("baton bench serve"):
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
