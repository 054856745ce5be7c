"""`baton plan`: what each way to spread a model over ranks would cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from baton.platform.cli.options.completion import complete_model
from baton.platform.cli.options.config_options import PLAN_OPTIONS, with_config_options
from baton.platform.cli.terminal.errors import told_in_one_line, warnings_silenced
from baton.platform.config.deployment import configure
from baton.platform.models.draft_folder import with_draft
from baton.platform.models.model_folder import find_model


@with_config_options(PLAN_OPTIONS)
def plan(  # noqa: PLR0913 - one parameter an option
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
            help="What `nvidia-smi topo -m` printed: tells where each rank would sit.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="All of it as one JSON object.")] = False,
) -> None:
    """Show what a rank would keep, and what the ranks would send each other in a forward pass.

    All layouts on up to --ranks ranks side by side; or, if one is given, its transfers one by one.
    Nothing but the model's config.json is read, and nothing is started.
    """
    with told_in_one_line("baton plan"):
        config = configure(None, {**changes, "model": model})
        folder = find_model(model, wants_weights=False)
        config = with_draft(config, folder, wants_weights=False)
        from baton.platform.cli.runs.plan import Job, run  # torch is imported from here on
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
