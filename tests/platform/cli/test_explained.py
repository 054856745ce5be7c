"""A request's decisions as a terminal shows them."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console

from baton.platform.cli.terminal.explained import show
from baton.router import decode_costs
from baton.router.policies.cost_terms import TERMS


def candidate(name: str, *, terms: dict[str, float], is_chosen: bool = False) -> dict[str, Any]:
    told: dict[str, Any] = {"replica": name, "is_chosen": is_chosen, "terms": terms, "cost": 123.4}
    times = {"wait_s": 12.345, "work_s": 98.765, "latency_s": 0.01, "age_s": 1.5}
    return {**told, **times, "held_tokens": 131_072}


def decoder(name: str, *, is_chosen: bool) -> dict[str, Any]:
    terms = {**dict.fromkeys(decode_costs.TERMS, 65.432), "silent_s": 0.0}
    told = {"replica": name, "is_chosen": is_chosen, "terms": terms, "cost_s": 123.4}
    return {**told, "held_tokens": 131_072, "age_s": 1.5}


def shown(terms: dict[str, float], **came: Any) -> list[str]:
    names = ("prefill-b6x7lxkx", "prefill-q2w3e4r5")
    decision: dict[str, Any] = {
        "attempt": 1,
        "policy": "cost",
        "reason": "it costs least",
        "prompt_tokens": 131_072,
        "computed_tokens": 64,
        "prefill_replica": names[0],
        "decode_replica": "decode-b6x7lxkx",
        "waited_s": 1.0,
        "in_line_s": 0.5,
        "foreseen_s": 2.0,
        "predicted_s": 1.0,
        "predicted_itl_s": None,
        "outcome": None,
        **came,
        "candidates": [candidate(n, terms=terms, is_chosen=n == names[0]) for n in names],
        "decode_candidates": [
            decoder(n, is_chosen=n == "decode-b6x7lxkx")
            for n in ("decode-b6x7lxkx", "decode-q2w3e4r5")
        ],
        "num_candidates": 2,
    }
    console = Console(file=StringIO(), width=80)
    show(console, {"id": "cmpl-1", "decisions": [decision]})
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


def test_all_that_a_candidate_costs_is_read_on_80_columns() -> None:
    terms = dict.fromkeys(TERMS, 54.321)

    lines = shown(terms)
    predicted, of_cost = (line.split() for line in lines if "* prefill-b6x7lxkx" in line)

    assert not any("…" in line for line in lines)
    assert predicted[2:] == ["111120", "12345", "98765", "131072", "1500", "123400"]
    assert of_cost[2:] == ["54321"] * (len(TERMS) - 2)


def test_what_decoding_would_cost_at_each_is_read_on_80_columns() -> None:
    lines = shown({})
    [chosen] = [line.split() for line in lines if "* decode-b6x7lxkx" in line]

    assert not any("…" in line for line in lines)
    num_terms = len(decode_costs.TERMS) - 1  # but for what is 0 everywhere
    assert chosen[2:] == ["65432"] * num_terms + ["1500", "123400"]
    assert any(line.split()[:1] == ["decode-q2w3e4r5"] for line in lines)


def test_what_was_missed_of_an_objective_is_told_beside_what_came() -> None:
    came = {"first_token_s": 1.5, "best_other": None, "itl_s": None}
    slo = {"slo_class": "chat", "ttft_s": 1.0, "itl_s": None, "outcome": "ttft"}

    told = " ".join(shown({}, outcome=came, slo=slo))

    assert "objective chat, TTFT 1000 ms: ttft was missed" in " ".join(told.split())
    met = shown({}, outcome=came, slo={**slo, "outcome": "met"})
    assert "missed" not in " ".join(met)


def test_a_cost_without_terms_has_no_table_of_them() -> None:
    assert not any("of the cost" in line for line in shown({}))
