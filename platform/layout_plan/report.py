"""Planned layouts: a table to choose from, all transfers of one, and a tree for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from baton.platform.doctor.demand import ModelMemory
from baton.platform.doctor.node_checks import GIB
from baton.platform.layout_plan.device_placement import device_placement
from baton.platform.layout_plan.layout import LayoutPlan, RankTransfers, Refused, Traffic
from baton.platform.layout_plan.transfers import Transfer, sent_bytes
from baton.platform.machine.gpu_topology import GpuTopology
from baton.platform.machine.rank_placement import links_told

KIB, MIB = 1 << 10, 1 << 20
MAX_REFUSED = 12
TEN = 9.95
"""Least number that is shown with two digits alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    model: str
    dtype: str
    traffic: Traffic
    link_gbps: float | None
    """GB/s that the user says a rank sends at."""
    is_quantised: bool
    """The checkpoint comes in few bits."""
    topology: GpuTopology | None
    """The topology of the machine it is for."""
    draft: ModelMemory | None
    """What `drafter` takes besides, on one rank of each decode engine."""
    drafter: str
    """Name of what drafts, such as: the draft model."""
    layouts: Sequence[LayoutPlan]
    refused: Sequence[Refused]


def show(console: Console, plan: Plan) -> None:
    """One layout in detail, or several side by side."""
    traffic = plan.traffic
    console.print(
        f"{plan.model} in {plan.dtype}; a decode pass of {traffic.requests} tokens, one a request "
        f"of {traffic.context}; a prefill pass of {traffic.prompt_tokens}{_where(plan)}"
    )
    if len(plan.layouts) == 1 and not plan.refused:
        _show_transfers(console, plan, plan.layouts[0])
    elif plan.layouts:
        console.print(_layouts(plan))
    for line in _placements(plan):
        console.print(line)
    if plan.draft is not None:
        console.print(
            f"{plan.drafter}: {shown(plan.draft.weight_bytes)} of weights and "
            f"{shown(plan.draft.kv_bytes)} of KV besides, on the first rank of each decode engine"
        )
    for refused in plan.refused[:MAX_REFUSED]:
        console.print(f"not {refused.name}: {refused.reason}")
    if plan.refused[MAX_REFUSED:]:
        console.print(f"nor {len(plan.refused) - MAX_REFUSED} more, which --json shows")
    if plan.is_quantised:
        console.print(
            "this checkpoint comes quantised: its weights are counted as several ranks widen them; "
            "one rank may keep them narrow"
        )
    if plan.layouts and plan.link_gbps is not None:
        console.print(
            f"ms: what a rank sends at the {plan.link_gbps:g} GB/s that you gave, in a ring; the "
            "latency of each message comes on top"
        )


def tree(plan: Plan) -> dict[str, Any]:
    return {
        "model": plan.model,
        "dtype": plan.dtype,
        "requests": plan.traffic.requests,
        "prompt_tokens": plan.traffic.prompt_tokens,
        "context": plan.traffic.context,
        "link_gbps": plan.link_gbps,
        **({} if plan.draft is None else {"draft": _draft(plan.draft)}),
        "layouts": [
            {
                **_mesh(layout),
                **_places(layout, plan.topology),
                "weight_bytes": layout.weight_bytes,
                "kv_token_bytes": layout.kv_token_bytes,
                "kv_bytes": layout.kv_bytes,
                "decode": _of_rank(layout.decode),
                "prefill": _of_rank(layout.prefill),
            }
            for layout in plan.layouts
        ],
        "refused": [{**_mesh(each), "reason": each.reason} for each in plan.refused],
    }


def _draft(draft: ModelMemory) -> dict[str, int]:
    return {"weight_bytes": draft.weight_bytes, "kv_bytes": draft.kv_bytes}


def _where(plan: Plan) -> str:
    return ", on each data place" if any(each.mesh.data > 1 for each in plan.layouts) else ""


def _mesh(layout: LayoutPlan | Refused) -> dict[str, Any]:
    mesh = layout.mesh
    return {
        "ranks": mesh.size,
        "tensor": mesh.tensor,
        "context": mesh.context,
        "data": mesh.data,
        "pipeline": mesh.pipeline,
        "expert": mesh.expert,
    }


def _places(layout: LayoutPlan, topology: GpuTopology | None) -> dict[str, Any]:
    placement = device_placement(layout, topology)
    if placement is None:
        return {}
    return {
        "gpus": placement.gpus,
        "links": {axis.value: kinds for axis, kinds in placement.links.items()},
    }


def _of_rank(found: RankTransfers) -> dict[str, Any]:
    return {"rank": found.rank, "transfers": [_transfer(each) for each in found.transfers]}


def _transfer(transfer: Transfer) -> dict[str, Any]:
    return {
        "what": transfer.what,
        "kind": transfer.kind.value,
        "ranks": transfer.num_ranks,
        "count": transfer.count,
        "bytes": transfer.num_bytes,
        "sent_bytes": transfer.sent_bytes,
    }


def _layouts(plan: Plan) -> Table:
    table = Table(box=SIMPLE, pad_edge=False, padding=_padding(plan.link_gbps))
    table.add_column("layout", no_wrap=True)
    columns = ["ranks", "weights", "KV a\ntoken"]
    for name in ("decode", "prefill"):
        columns += [f"{name}\ncalls", "sent"] + ([] if plan.link_gbps is None else ["ms"])
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for layout in plan.layouts:
        cells = [layout.name, str(layout.mesh.size)]
        cells += [shown(layout.weight_bytes), shown(layout.kv_token_bytes)]
        for found in (layout.decode, layout.prefill):
            cells += [str(found.num_calls), *_sent(found.sent_bytes, plan.link_gbps)]
        table.add_row(*cells)
    table.caption = "of the rank that has, or sends, most; calls and sent in one pass"
    return table


def _show_transfers(console: Console, plan: Plan, layout: LayoutPlan) -> None:
    console.print(
        f"{layout.name}: {shown(layout.weight_bytes)} of weights a rank, "
        f"{shown(layout.kv_token_bytes)} of KV a token, {shown(layout.kv_bytes)} of all requests"
    )
    for name, found in (("decode", layout.decode), ("prefill", layout.prefill)):
        if found.transfers:
            console.print(
                _transfers(f"{name} pass, {_which(layout, found)}", found, plan.link_gbps)
            )
        else:
            console.print(f"{name}: nothing is sent")


def _which(layout: LayoutPlan, found: RankTransfers) -> str:
    return (
        "each rank" if layout.mesh.size == layout.mesh.tensor else f"rank {found.rank}, the busiest"
    )


def _transfers(title: str, found: RankTransfers, link_gbps: float | None) -> Table:
    padding = _padding(link_gbps)
    table = Table(title=title, box=SIMPLE, pad_edge=False, padding=padding, title_justify="left")
    for column in ("what", "kind"):
        table.add_column(column, no_wrap=True)
    for column in ("ranks", "calls", "most bytes", "sent", *(() if link_gbps is None else ("ms",))):
        table.add_column(column, justify="right", no_wrap=True)
    by_likeness: dict[tuple[str, str, int], list[Transfer]] = {}
    for each in found.transfers:
        by_likeness.setdefault((each.what, each.kind.value, each.num_ranks), []).append(each)
    for (what, kind, num_ranks), alike in by_likeness.items():
        table.add_row(
            what,
            kind,
            str(num_ranks),
            str(sum(each.count for each in alike)),
            shown(max(each.num_bytes for each in alike)),
            *_sent(sent_bytes(alike), link_gbps),
        )
    table.add_section()
    table.add_row("all", "", "", str(found.num_calls), "", *_sent(found.sent_bytes, link_gbps))
    return table


def _placements(plan: Plan) -> Iterator[str]:
    for layout in plan.layouts:
        placement = device_placement(layout, plan.topology)
        if placement is not None:
            gpus = " ".join(placement.gpus)
            yield f"{layout.name}: {links_told(placement.links)}; ranks on {gpus}"


def _padding(link_gbps: float | None) -> tuple[int, int]:
    """Cell padding with which all columns fit into 80 characters."""
    return (0, 1 if link_gbps is None else 0)


def _sent(num_bytes: int, link_gbps: float | None) -> list[str]:
    if link_gbps is None:
        return [shown(num_bytes)]
    return [shown(num_bytes), f"{num_bytes / link_gbps / 1e6:.2f}"]


def shown(num_bytes: int) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if num_bytes >= unit:
            number = num_bytes / unit
            return f"{number:.{0 if number >= TEN else 1}f} {name}"
    return f"{num_bytes} B"
