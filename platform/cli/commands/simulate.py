"""`baton simulate`: a recorded load against the router, on replicas that are arithmetic."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from baton.platform.cli.options.load_options import InTime, JsonFile, PlotFile, of_output, panel
from baton.platform.cli.terminal.errors import told_in_one_line

of_replicas, of_load = panel("Replicas"), panel("Load and policies")


def simulate(  # noqa: PLR0913 - one parameter an option
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...",
            help="Mooncake's JSON lines, Azure's CSV, or sessions; .gz, too.",
            show_default=False,
        ),
    ],
    replicas: Annotated[int, of_replicas(min=1, help="That prefill.")] = 16,
    blocks: Annotated[int, of_replicas(min=1, help="Of each one's prefix cache.")] = 3000,
    block_size: Annotated[
        int,
        of_replicas(
            min=1,
            help="Tokens of a block: a divisor or a multiple of what a trace's hash ids stand for.",
        ),
    ] = 512,
    prefill_rate: Annotated[
        float | None,
        of_replicas(help="Tokens a second that a replica prefills.", show_default="by --load"),
    ] = None,
    itl: Annotated[
        float,
        of_replicas(
            min=0.0, help="Seconds from one output token to the next: when a session's answer ends."
        ),
    ] = 0.0,
    load: Annotated[
        list[float] | None,
        of_load(
            help="Share of all replicas' time that the trace would take if nothing were cached, "
            "such as 0.7; may be repeated.",
            show_default="0.7, 1 and 1.3",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        of_load(
            help="A policy's name, `all` of them, or an `ablation` of the default; may be "
            "repeated.",
            show_default="all",
        ),
    ] = None,
    seeds: Annotated[int, of_load(min=1, help="Times that each is played.")] = 5,
    max_waiting: Annotated[
        int | None,
        of_load(
            min=0, help="Prompts that wait; what comes then is rejected.", show_default="no limit"
        ),
    ] = None,
    slo_ttft: InTime = 10.0,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
    jobs: Annotated[
        int | None,
        of_output(min=1, help="Processes.", show_default="a core each"),
    ] = None,
) -> None:
    """Routing policies side by side: which replica each prompt of a trace is sent to, and when.

    The router, its index and its line are the gateway's own; replicas are arithmetic: prompts one
    after the other at a constant rate, and a prefix cache. A trace of sessions is played as a
    closed loop: a turn comes after the answer before it, and its gap.
    """
    with told_in_one_line("baton simulate"):
        from baton.platform.cli.runs.simulate import Job, run  # numpy and the router from here on
        from baton.platform.simulator.setup import Setup

        run(
            Job(
                traces=traces,
                policies=policy or ["all"],
                loads=load or [],
                prefill_rate=prefill_rate,
                num_seeds=seeds,
                setup=Setup(
                    num_replicas=replicas,
                    num_blocks=blocks,
                    block_size=block_size,
                    tokens_per_s=prefill_rate or 1.0,
                    itl_s=itl,
                    max_waiting=max_waiting,
                    slo_ttft_s=slo_ttft,
                ),
                num_jobs=jobs or len(os.sched_getaffinity(0)),
                json_file=json_file,
                plot_file=plot_file,
            )
        )
