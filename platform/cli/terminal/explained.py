"""Shows a request's decisions: a table of candidates for each, and the outcome."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from baton.core.wording import count_of

CHOSEN = "*"
EXACT_BELOW = 100.0
SHOWN_ANYWAY = ("wait_s", "work_s")
"""Terms that have columns of their own."""


def show(console: Console, request: Mapping[str, Any]) -> None:
    """Show what GET /v1/requests/{id} answers."""
    console.print(f"request {escape(request['id'])}")
    for decision in request["decisions"]:
        _show(console, decision)


def _show(console: Console, decision: Mapping[str, Any]) -> None:
    adapter = decision.get("adapter")  # an older gateway has none
    model = f"with adapter {escape(adapter)}, " if adapter else ""
    console.print(
        f"attempt {decision['attempt']}, {model}policy {decision['policy']}: "
        f"{count_of(decision['prompt_tokens'], 'token')}, "
        f"{decision['computed_tokens']} computed by {escape(decision['prefill_replica'])}, "
        f"decoded by {escape(decision['decode_replica'])}; waited "
        f"{_ms(decision['waited_s'])} ms for its place, "
        f"{_ms(decision['in_line_s'])} of them in line"
    )
    console.print(f"because: {escape(decision['reason'])}")
    console.print(_predictions(decision["candidates"]))
    if (terms := _terms(decision["candidates"])) is not None:
        console.print(terms)
    if (num_more := decision["num_candidates"] - len(decision["candidates"])) > 0:
        console.print(f"and {num_more} more, none of which costs less")
    if decision["decode_candidates"]:
        console.print(_decoders(decision["decode_candidates"]))
    console.print(
        f"{CHOSEN} chosen; milliseconds, predicted when sent; age: of the replica's last word"
    )
    console.print(_outcome(decision))


def _predictions(candidates: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("replica", "first token", "wait", "work", "held", "age", "cost")
    for one in candidates:
        in_s = bool(one["terms"])  # a cost in seconds is a duration
        first_s = one["wait_s"] + one["work_s"] + one["latency_s"]
        cost = one["cost"]
        cells = (
            *map(_ms, (first_s, one["wait_s"], one["work_s"])),
            str(one["held_tokens"]),
            _ms(one["age_s"]),
            _ms(cost) if in_s or cost is None else f"{cost:g}",
        )
        _add(table, one, cells)
    return table


def _decoders(candidates: Sequence[Mapping[str, Any]]) -> Table:
    """Candidate decode replicas with their costs. Terms that are 0 for all of them are left out, to
    fit into 80 columns."""
    terms = [
        name for name in candidates[0]["terms"] if any(one["terms"][name] for one in candidates)
    ]
    table = _table("to decode", *(name.removesuffix("_s") for name in terms), "age", "cost")
    for one in candidates:
        seconds = (*(one["terms"][name] for name in terms), one["age_s"], one["cost_s"])
        _add(table, one, map(_ms, seconds))
    return table


def _terms(candidates: Sequence[Mapping[str, Any]]) -> Table | None:
    """The terms of the costs, if the policy gives them; below the table, which has 80 columns."""
    terms = list(dict.fromkeys(name for one in candidates for name in one["terms"]))
    terms = [name for name in terms if name not in SHOWN_ANYWAY]
    if not terms:
        return None
    table = _table("of the cost", *(name.removesuffix("_s") for name in terms))
    for one in candidates:
        _add(table, one, [_ms(one["terms"].get(name)) for name in terms])
    return table


def _table(first: str, *titles: str) -> Table:
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(first, no_wrap=True)
    for title in titles:
        table.add_column(title, justify="right", no_wrap=" " not in title)
    return table


def _add(table: Table, candidate: Mapping[str, Any], cells: Iterable[str]) -> None:
    mark = CHOSEN if candidate["is_chosen"] else " "
    style = "bold green" if candidate["is_chosen"] else None
    table.add_row(f"{mark} {escape(candidate['replica'])}", *cells, style=style)


def _outcome(decision: Mapping[str, Any]) -> str:
    predicted = (
        f"first token: predicted after {_ms(decision['foreseen_s'])} ms when it came, "
        f"{_ms(decision['predicted_s'])} when it was sent"
    )
    came = decision["outcome"]
    if came is None:
        return f"{predicted}; there is none yet"
    told = f"{predicted}; came after {_ms(came['first_token_s'])}"
    if came["best_other"] is not None:
        told += (
            f"; {escape(came['best_other'])} would have taken {_ms(came['best_other_s'])}: "
            f"regret {_ms(came['regret_s'])}"
        )
    if (slo := decision["slo"]) is not None:
        allowed = [
            f"{name} {_ms(seconds)}"
            for name, seconds in (("TTFT", slo["ttft_s"]), ("ITL", slo["itl_s"]))
            if seconds is not None
        ]
        missed = "met" if slo["outcome"] == "met" else f"{slo['outcome']} was missed"
        name = escape(slo["slo_class"] or "of its own")
        told += f"; objective {name}, {', '.join(allowed)} ms: {missed}"
    if came["itl_s"] is not None:
        told += f"\nfrom token to token: predicted {_ms(decision['predicted_itl_s'])} ms, "
        told += f"took {_ms(came['itl_s'])} over {count_of(came['output_tokens'], 'token')}"
    return told


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    milliseconds = seconds * 1e3
    return f"{milliseconds:.0f}" if abs(milliseconds) >= EXACT_BELOW else f"{milliseconds:.1f}"
