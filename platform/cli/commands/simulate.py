"""`baton simulate`: replays a recorded load through the router on simulated replicas."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from baton.core.errors import InvalidConfig
from baton.platform.cli.options.gateway_options import ApiKey, CaFile
from baton.platform.cli.options.load_options import InTime, JsonFile, PlotFile, of_output, panel
from baton.platform.cli.terminal.errors import errors_in_one_line

of_replicas, of_load = panel("Replicas"), panel("Load and policies")
of_fleet, of_planner = panel("A fleet, with tokens"), panel("Pools that follow the load")


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
    decode: Annotated[
        int,
        of_fleet(
            min=0,
            help="Decode replicas: with any, prompts and tokens go through the engine's own "
            "scheduler, blocks and leases on a --device.",
        ),
    ] = 0,
    prefill: Annotated[
        int,
        of_fleet(min=0, help="Prefill replicas; without any, decode replicas compute prompts."),
    ] = 0,
    device: Annotated[
        str,
        of_fleet(
            metavar="SOURCE",
            help="Step times, blocks, links: a JSON file, the URL of a gateway's admin port (its "
            "replicas have measured theirs), or FILE.csv:MODEL,HARDWARE,RANKS of measured passes.",
            show_default=False,
        ),
    ] = "",
    api_key: ApiKey = None,
    ca_file: CaFile = None,
    gateways: Annotated[int, of_fleet(min=1, help="Among which requests are spread.")] = 1,
    without: Annotated[
        list[str] | None,
        of_fleet(
            help="What gateways do without: `step-model`, `gossip`, `sessions` or `pulls`; may be "
            "repeated.",
            show_default=False,
        ),
    ] = None,
    tenant: Annotated[
        list[str] | None,
        of_fleet(
            metavar="NAME=SHARE[,SETTING=NUMBER...]",
            help="Share of the conversations that are a tenant's, and its `weight`, "
            "`requests_per_minute`, `tokens_per_second` and so on, as of gateway.tenants. What is "
            "over its limits is rejected. May be repeated.",
            show_default=False,
        ),
    ] = None,
    planner: Annotated[
        bool,
        of_planner(
            "--planner",
            help="Let the planner change the numbers of replicas, beside pools of one size that "
            "cost as much and twice.",
        ),
    ] = False,
    slo_itl: Annotated[
        float, of_planner(min=0.0, help="Seconds within which further tokens are in time.")
    ] = 0.1,
    cold_start: Annotated[
        float, of_planner(min=0.0, help="Seconds until a replica that is added serves.")
    ] = 30.0,
    flip: Annotated[
        float, of_planner(min=0.0, help="Seconds until one serves in the other role.")
    ] = 2.0,
    max_replicas: Annotated[int, of_planner(min=1, help="Of each role.")] = 8,
    idle: Annotated[
        float, of_planner(min=0.0, help="Seconds without a request until none is left; 0: never.")
    ] = 0.0,
    load: Annotated[
        list[float] | None,
        of_load(
            help="Share of all replicas' time that the trace would take if nothing were cached, "
            "such as 0.7; may be repeated.",
            show_default="0.7, 1 and 1.3; of a fleet, arrivals as recorded",
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
    slo_class: Annotated[
        list[str] | None,
        of_output(
            metavar="NAME=TTFT_S[,ITL_S]:SHARE",
            help="Share of the conversations that are of a class, which has an objective of its "
            "own; the router knows it. May be repeated.",
            show_default=False,
        ),
    ] = None,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
    jobs: Annotated[
        int | None,
        of_output(min=1, help="Processes.", show_default="a core each"),
    ] = None,
) -> None:
    """Compare routing policies: when and where each prompt of a trace is computed.

    The router, its index and its line are the gateway's own code; a simulated replica computes
    prompts one after the other at a constant rate, and has a prefix cache. With --decode, replicas
    are the engine's scheduler and blocks, with handoffs; only step times are modelled. A trace of
    sessions is a closed loop: a turn comes a gap after the previous answer.
    """
    with errors_in_one_line("baton simulate"):
        from baton.platform.cli.runs.simulate import Job, play_pool, run  # numpy from here on
        from baton.platform.simulator.setup import Setup, SloClass

        job = Job(
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
                slo_classes=[SloClass.read(one) for one in slo_class or ()],
            ),
            num_jobs=jobs or len(os.sched_getaffinity(0)),
            json_file=json_file,
            plot_file=plot_file,
        )
        if not decode:
            if prefill or device or without or gateways > 1 or planner or tenant:
                raise InvalidConfig(
                    "--decode: a fleet has at least one decode replica; give their number"
                )
            run(job, play_pool)
            return
        if planner and (slo_class or tenant):
            raise InvalidConfig(
                "--planner: the simulated planner supports only --slo-ttft; leave classes and "
                "tenants out"
            )
        from baton.platform.cli.runs.simulate_fleet import FleetOptions, run_fleet  # torch, too
        from baton.platform.simulator.fleet.setup import parts
        from baton.platform.simulator.fleet.tenants import SimulatedTenant

        fleet = FleetOptions(
            num_prefill=prefill,
            num_decode=decode,
            num_gateways=gateways,
            device=device,
            api_key=api_key,
            ca_file=ca_file,
            without=parts(without or ()),
            tenants=[SimulatedTenant.read(one) for one in tenant or ()],
        )
        if not planner:
            run_fleet(job, fleet)
            return
        from baton.platform.cli.runs.simulate_planned import PlannedOptions, run_planned
        from baton.platform.planner.config import PlannerConfig

        rules = PlannerConfig(
            ttft_s=slo_ttft,
            itl_s=slo_itl,
            min_prefill=1 if prefill else 0,
            max_prefill=max_replicas if prefill else 0,
            max_decode=max_replicas,
            idle_s=idle,
            cold_start_s=cold_start,
        )
        run_planned(job, PlannedOptions(fleet=fleet, rules=rules, flip_s=flip))
