"""`baton status` says why a replica does not answer, and how those that do compute."""

from __future__ import annotations

import pytest

from baton.platform.cli.commands.status import (
    _engines,
    _huge_pages,
    _pace,
    _registries,
    _state,
    _trouble,
)
from baton.proto.cluster_token import REFUSAL


@pytest.mark.parametrize(
    ("trouble", "shown"),
    [(REFUSAL, "refused: cluster token"), ("Socket closed", "unreachable"), ("", "unreachable")],
)
def test_a_refused_token_is_told_from_a_dead_replica(trouble: str, shown: str) -> None:
    assert _trouble({"trouble": trouble}) == shown


def test_a_predicted_rate_says_when_to_doubt_it_and_nothing_before_the_first_step() -> None:
    known = {
        "prefill_tokens_per_second": 812.4,
        "step_times_age_seconds": 3.0,
        "slowness": 1.1,
    }

    assert _pace({}, "prefill") == "-"
    assert _pace(known, "prefill") == "812"
    assert _pace({**known, "step_times_age_seconds": 600.0}, "prefill") == "812, 600 s ago"
    assert _pace({**known, "slowness": 2.04}, "prefill") == "812, 2.0 x slower"


def test_kv_on_huge_pages_is_told_of_replicas_that_may_have_it() -> None:
    def replica(name: str, **metrics: float) -> dict[str, object]:
        return {"replica": name, "metrics": metrics}

    unreachable = {"replica": "d1", "is_reachable": False}
    pools = {
        "prefill": [replica("p0", kv_huge_page_bytes=float(6 << 20))],
        "decode": [replica("d0"), unreachable],
    }

    assert _huge_pages({"pools": pools}) == ["KV on pages of 2 MB: p0 6 MiB"]
    assert _huge_pages({"pools": {"decode": [replica("d0")]}}) == []


def test_engines_that_are_alike_are_told_of_once_a_pool() -> None:
    facts = {
        "model": "tiny",
        "architecture": "LlamaForCausalLM",
        "dtype": "bfloat16",
        "quantize": "int4",
        "kv_dtype": "int8",
        "device": "cpu",
        "kernels": "compiled",
        "passes": "tape",
        "num_threads": 2,
    }
    report = {
        "pools": {
            "prefill": [{"engine": {**facts, "quantize": "none", "device": "cuda"}}],
            "decode": [
                {"engine": {**facts, "num_ranks": 1}},
                {"engine": {**facts, "num_ranks": 1}},
                {"engine": {**facts, "num_ranks": 4}},
                {"trouble": "Socket closed"},
            ],
        }
    }

    assert _engines(report) == [
        "prefill: tiny (LlamaForCausalLM), bfloat16, weights as they are, KV int8; cuda, compiled "
        "kernels by tape",
        "decode: tiny (LlamaForCausalLM), bfloat16, int4 weights, KV int8; cpu, compiled kernels "
        "by tape on 2 threads",
        "decode: tiny (LlamaForCausalLM), bfloat16, int4 weights, KV int8; 4 ranks of cpu, "
        "compiled kernels by tape on 2 threads",
    ]


def test_a_replica_in_the_other_role_or_on_its_way_there_says_so() -> None:
    at_rest = {"is_ready": True, "is_flipped": False}
    assert _state(at_rest, "prefill") == "[green]ready[/green]"
    assert _state({**at_rest, "is_flipped": True}, "decode") == "[green]as decode[/green]"
    turns = {"is_ready": False, "flip": {"to": "decode", "failure": ""}}
    assert _state(turns, "prefill") == "[yellow]to decode[/yellow]"
    stayed = {"is_ready": True, "flip": {"to": "decode", "failure": "it was undrained"}}
    assert _state(stayed, "prefill") == "[green]ready[/green]"


def test_registries_are_told_of_where_there_are_several() -> None:
    heard = {"registry": "Registry", "is_heard": True, "num_replicas": 2, "trouble": ""}
    away = {"registry": "Registry-1", "is_heard": False, "num_replicas": None, "trouble": "away"}

    assert _registries({}) == []
    assert _registries({"registries": [heard, away]}) == [
        "registries: Registry knows 2 replicas, Registry-1 does not answer (away)"
    ]
