"""`baton plan`: how many accelerators a load takes, and what each way to spread a model costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from baton.platform.cli.options.completion import complete_model
from baton.platform.cli.options.config_options import (
    PLAN_OPTIONS,
    SIZE_OPTIONS,
    with_config_options,
)
from baton.platform.cli.options.load_options import panel
from baton.platform.cli.terminal.errors import errors_in_one_line, warnings_silenced
from baton.platform.config.deployment import configure
from baton.platform.models.draft_folder import with_draft
from baton.platform.models.model_folder import find_model

app = typer.Typer(help="Plan before anything is rented or started.", no_args_is_help=True)
of_load, of_machine = panel("Load and promise"), panel("Accelerators")
of_answer = panel("Answer")


@app.callback()
def plan() -> None:
    """Plan before anything is rented or started."""


@app.command()
@with_config_options(PLAN_OPTIONS)
def layout(  # noqa: PLR0913 - one parameter an option
    changes: dict[str, Any],
    model: Annotated[
        str,
        typer.Argument(
            help="Model folder, Hugging Face id, or `demo`.", autocompletion=complete_model
        ),
    ],
    ranks: Annotated[
        int, typer.Option(min=1, help="On up to so many, unless a layout is given.")
    ] = 8,
    requests: Annotated[int, typer.Option(min=1, help="That decode together on a replica.")] = 32,
    tokens: Annotated[int, typer.Option(min=1, help="That one pass prefills.")] = 2048,
    context: Annotated[int, typer.Option(min=1, help="Tokens of each request.")] = 4096,
    device_gib: Annotated[
        float | None,
        typer.Option(min=0.0, help="Memory of a device: what does not fit is refused."),
    ] = None,
    link_gbps: Annotated[
        float | None,
        typer.Option(min=0.001, help="GB/s at which a rank sends: gives the least time."),
    ] = None,
    topology: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="What `nvidia-smi topo -m` printed: shows where each rank would sit.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="All of it as one JSON object.")] = False,
) -> None:
    """Show what a rank would keep, and what the ranks would send each other in a forward pass.

    All layouts on up to --ranks ranks side by side; or, if one is given, its transfers one by one.
    Nothing but the model's config.json is read, and nothing is started.
    """
    with errors_in_one_line("baton plan layout"):
        config = configure(None, {**changes, "model": model})
        folder = find_model(model, wants_weights=False)
        config = with_draft(config, folder, wants_weights=False)
        from baton.platform.cli.runs.plan_layout import Job, run  # torch is imported from here on
        from baton.platform.layout_plan.layout import Traffic

        job = Job(
            is_given=any(path.startswith("prefill.parallel.") for path in changes),
            num_ranks=ranks,
            traffic=Traffic(requests=requests, prompt_tokens=tokens, context=context),
            device_gib=device_gib,
            link_gbps=link_gbps,
            topology=None if topology is None else topology.read_text(),
            is_json=as_json,
        )
        with warnings_silenced():
            run(config, folder, job)


@app.command()
@with_config_options(SIZE_OPTIONS)
def size(  # noqa: PLR0913 - one parameter an option
    changes: dict[str, Any],
    model: Annotated[
        str,
        typer.Argument(
            help="Model folder, Hugging Face id, `demo`, or a known shape such as llama-3.3-70b.",
            autocompletion=complete_model,
        ),
    ],
    accelerator: Annotated[
        str, of_machine(help="Such as h100-sxm, or `cpu`: a core of this machine, measured.")
    ] = "h100-sxm",
    precision: Annotated[
        str,
        of_machine(
            help="Of weights that are multiplied: bf16, fp8 or fp4.", show_default="the dtype's"
        ),
    ] = "",
    max_ranks: Annotated[int, of_machine(min=1, help="Of one replica.")] = 8,
    price: Annotated[
        float | None, of_machine(min=0.0, help="Of an accelerator for an hour, in any money.")
    ] = None,
    rate: Annotated[
        float | None, of_load(min=1e-6, help="Requests a second.", show_default="the trace's, or 1")
    ] = None,
    input_tokens: Annotated[
        float, of_load("--input", min=1, help="Tokens of a prompt that are computed, on average.")
    ] = 1000.0,
    cached_tokens: Annotated[
        float,
        of_load("--cached", min=0, help="Tokens before them that caches hold, on average."),
    ] = 0.0,
    input_cv: Annotated[
        float, of_load(min=0.0, help="Their standard deviation over their mean.")
    ] = 0.0,
    output_tokens: Annotated[
        float, of_load("--output", min=1, help="Tokens of an answer, on average.")
    ] = 200.0,
    trace: Annotated[
        Path | None,
        of_load(
            exists=True, dir_okay=False, help="Lengths, and the rate, of a trace instead of these."
        ),
    ] = None,
    ttft: Annotated[float, of_load(min=0.0, help="Seconds to a first token.")] = 1.0,
    itl: Annotated[float, of_load(min=0.0, help="Seconds from one token to the next.")] = 0.05,
    share: Annotated[
        float, of_load(min=0.5, max=0.999, help="Of requests that are to get them so soon.")
    ] = 0.9,
    apart: Annotated[
        bool | None,
        of_answer(
            "--apart/--together",
            help="Prefill replicas, or prompts computed where they decode.",
            show_default="whatever takes less",
        ),
    ] = None,
    explain: Annotated[bool, of_answer("--explain", help="Show the arithmetic.")] = False,
    simulate: Annotated[
        int | None,
        of_answer(min=1, help="So many requests, to hold the forecast to the simulator."),
    ] = None,
    yaml_file: Annotated[
        Path | None, of_answer("--yaml", help="Write the configuration there, for `baton serve`.")
    ] = None,
    chart_file: Annotated[
        Path | None, of_answer("--chart", help="Write values of the Helm chart there.")
    ] = None,
    device_file: Annotated[
        Path | None, of_answer("--device-file", help="Write what `baton simulate --device` takes.")
    ] = None,
    as_json: Annotated[bool, of_answer("--json", help="All of it as one JSON object.")] = False,
) -> None:
    """Say how many accelerators a load takes, what it would get, and what that costs.

    Memory, rooflines, layouts, replicas of both roles, times, cost, and a configuration. Nothing
    but the model's config.json is read, and nothing is started.
    """
    with errors_in_one_line("baton plan size"):
        from baton.platform.cli.runs.plan_size import Job, run  # torch is imported from here on
        from baton.platform.planner.capacity import Load, Promise

        job = Job(
            model=model,
            changes=changes,
            accelerator=accelerator,
            precision=precision,
            max_ranks=max_ranks,
            price=price,
            rate=rate,
            load=Load(
                rate=rate or 1.0,
                prompt_tokens=input_tokens,
                cached_tokens=cached_tokens,
                output_tokens=output_tokens,
                prompt_cv2=input_cv**2,
            ),
            trace=trace,
            promise=Promise(ttft_s=ttft, itl_s=itl, share=share),
            is_apart=apart,
            is_explained=explain,
            num_simulated=simulate,
            yaml_file=yaml_file,
            chart_file=chart_file,
            device_file=device_file,
            is_json=as_json,
        )
        with warnings_silenced():
            run(job)
