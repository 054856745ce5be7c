"""A simulated fleet against times made by hand, measured machines, and conservation."""

from __future__ import annotations

import csv
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import pytest

from baton.core.errors import InvalidConfig
from baton.core.step_times import StepTimes
from baton.platform.simulator.fleet.devices import devices_in, devices_of, measured_device
from baton.platform.simulator.fleet.experiment import at_load
from baton.platform.simulator.fleet.figures import FleetFigures
from baton.platform.simulator.fleet.play import Fleet
from baton.platform.simulator.fleet.setup import Device, FleetSetup, Links, Part, parts
from baton.platform.simulator.fleet.tenants import SimulatedTenant
from baton.platform.simulator.setup import SloClass
from baton.platform.traces.trace import Trace, TraceRequest

MEASURED = Path(__file__).parents[3] / "engine" / "schedule" / "measured_steps.csv"
TIMES = StepTimes(constant_s=0.1, token_s=0.001, request_s=0.0)
DEVICE = Device(step_times=TIMES, num_blocks=64, block_size=10, token_bytes=100.0)
LINKS = Links(front_s=0.5, latency_s=0.01, bytes_per_s=10_000.0)
SETUP = FleetSetup(
    num_prefill=1, num_decode=1, prefill=DEVICE, decode=DEVICE, links=LINKS, is_noisy=False
)


def trace(*requests: TraceRequest, block_size: int | None = 10) -> Trace:
    return Trace(name="made up", requests=requests, block_size=block_size)


def asked(at_s: float, length: int = 100, output: int = 3, ids: Sequence[int] = ()) -> TraceRequest:
    return TraceRequest(
        arrival_s=at_s, input_length=length, output_length=output, hash_ids=tuple(ids)
    )


def played(load: Trace, setup: FleetSetup = SETUP, policy: str = "cost") -> Fleet:
    fleet = Fleet(load, setup, policy, seed=0)
    fleet.play()
    return fleet


def figures(load: Trace, setup: FleetSetup = SETUP, policy: str = "cost") -> FleetFigures:
    return Fleet(load, setup, policy, seed=0).play().figures(10.0)


def crowd(num_requests: int) -> Trace:
    """Prompts of up to 100 tokens that begin alike by chance, faster than they can be answered."""
    random_ = random.Random(3)
    return trace(
        *(
            asked(
                number * 0.02,
                length=random_.randrange(5, 100),
                output=random_.randrange(1, 40),
                ids=[random_.randrange(2) + 2 * depth for depth in range(random_.randrange(4))],
            )
            for number in range(num_requests)
        )
    )


def test_a_prompt_goes_to_a_prefill_replica_and_its_tokens_come_from_a_decode_replica() -> None:
    """100 tokens take 0.2 s, and their KV 1 s on its way from the beginning of that.

    first token    front 0.5, to D and P 0.02, computed 0.2, to D and the gateway 0.02
    second         the KV is at D 1.01 after P began; a step of one token takes 0.101
    """
    outcome = Fleet(trace(asked(0.0)), SETUP, "cost", seed=0).play()

    assert list(outcome.ttft_s) == pytest.approx([0.74])
    began = 0.52
    second = began + 1.01 + 0.101 + 0.01
    assert list(outcome.gaps_s) == pytest.approx([second - 0.74, 0.101])


def test_without_prefill_replicas_a_prompt_is_computed_where_it_is_answered() -> None:
    """It shares its decode replica's second step with nobody, and its own first with one."""
    outcome = Fleet(trace(asked(0.0)), replace(SETUP, num_prefill=0), "cost", seed=0).play()

    assert list(outcome.ttft_s) == pytest.approx([0.5 + 0.01 + 0.2 + 0.01])
    assert list(outcome.gaps_s) == pytest.approx([0.101, 0.101])


@pytest.mark.parametrize(
    ("num_prefill", "num_gateways", "policy"),
    [(2, 1, "cost"), (2, 3, "cost"), (1, 1, "round-robin"), (0, 2, "least-tokens")],
)
def test_each_request_gets_all_its_tokens_and_every_block_is_given_back(
    num_prefill: int, num_gateways: int, policy: str
) -> None:
    """With blocks for few: leases are refused and given up, requests preempted."""
    small = msgspec.structs.replace(DEVICE, num_blocks=24)
    setup = replace(
        SETUP,
        num_prefill=num_prefill,
        num_decode=2,
        num_gateways=num_gateways,
        prefill=small,
        decode=small,
        links=Links(latency_s=0.001, bytes_per_s=1e5),
    )
    load = crowd(80)

    fleet = played(load, setup, policy)

    outcome = fleet.outcome
    assert len(outcome.ttft_s) == 80 and outcome.rejected == 0
    num_tokens = sum(request.output_length for request in load.requests)
    assert outcome.num_output_tokens == num_tokens
    assert min(outcome.gaps_s) >= 0.0
    assert outcome.num_preempted > 0
    assert [engine.pool.num_in_use for engine in fleet.engines] == [0] * len(fleet.engines)


@pytest.mark.parametrize("gap_s", [0.15, 0.4])
def test_nine_of_ten_first_tokens_come_within_the_interval_that_an_estimate_tells(
    gap_s: float,
) -> None:
    """The replicas are at rest much of the time, or now and then many wait."""
    random_, at_s, requests = random.Random(3), 0.0, []
    for _ in range(400):
        at_s += random_.expovariate(1 / gap_s)
        output = random_.randrange(1, 40)
        requests.append(asked(at_s, length=random_.randrange(5, 100), output=output))

    found = figures(trace(*requests), replace(SETUP, num_decode=2, is_noisy=True))

    assert 0.85 <= found.coverage <= 0.95


def test_the_same_seed_gives_the_same_figures() -> None:
    setup = replace(SETUP, num_decode=2, num_gateways=2, is_noisy=True)

    assert figures(crowd(30), setup) == figures(crowd(30), setup)


def test_the_next_turn_of_a_session_finds_what_was_generated() -> None:
    """The first is answered with 20 tokens, which the second repeats behind its own 20."""
    turns = [
        TraceRequest(session="s", turn=turn, gap_s=1.0, input_length=n, output_length=20,
                     hash_ids=tuple(range(n // 10)))
        for turn, n in enumerate((20, 60))
    ]  # fmt: skip

    outcome = Fleet(trace(*turns), replace(SETUP, num_prefill=0), "cost", seed=0).play()

    assert outcome.num_cached == 30  # of the answer's two blocks the last lacks its last token


def test_a_prefix_is_pulled_from_a_replica_that_is_busy_and_not_if_nobody_may() -> None:
    fast = replace(SETUP, num_prefill=0, num_decode=2, links=Links(bytes_per_s=1e9))
    slow = msgspec.structs.replace(
        DEVICE, step_times=StepTimes(constant_s=0.1, token_s=0.1), max_open=1
    )
    setup = replace(fast, decode=slow)
    ids = range(10)
    load = trace(asked(0.0, 100, 2, ids), asked(20.0, 100, 200, ids), asked(21.0, 100, 2, ids))

    assert figures(load, setup).num_pulled_tokens == 90
    assert figures(load, replace(setup, without=parts(["pulls"]))).num_pulled_tokens == 0


def test_what_comes_when_enough_wait_is_rejected() -> None:
    one = msgspec.structs.replace(DEVICE, max_open=1)
    setup = replace(SETUP, num_prefill=0, decode=one, max_waiting=1)

    found = figures(trace(asked(0.0), asked(0.1), asked(0.2), asked(9.0)), setup)

    assert found.rejected == 1 and found.num_requests == 4 and found.goodput == 3 / 4


def test_tenants_are_served_by_weight_while_both_wait_and_each_within_its_limits() -> None:
    """80 prompts come at once to a replica that takes 0.2 s for each, and lends credit for two."""
    setup = replace(SETUP, prefill=msgspec.structs.replace(DEVICE, max_batch_tokens=100))
    many = trace(*(asked(0.0, output=1) for _ in range(80)))
    heavy = SimulatedTenant(name="heavy", share=0.5, weight=3.0)
    light = SimulatedTenant(name="light", share=0.5)

    weighed = played(many, replace(setup, tenants=(heavy, light))).outcome
    limited = replace(light, requests_per_minute=5)
    bounded = played(many, replace(setup, tenants=(heavy, limited))).outcome.figures(10.0)

    first = Counter(one.tenant for one in weighed.served[:40])  # then too few of the heavy are left
    assert 2.0 < first["heavy"] / first["light"] < 4.0
    assert bounded.tenants["light"].num_requests - bounded.tenants["light"].rejected == 5
    assert bounded.tenants["heavy"].rejected == 0


def test_who_waits_makes_room_for_a_tenant_that_has_fewer_in_line() -> None:
    setup = replace(
        SETUP,
        max_waiting=4,
        decode=msgspec.structs.replace(DEVICE, max_open=1),
        tenants=(SimulatedTenant(name="many", share=0.9), SimulatedTenant(name="few", share=0.1)),
    )

    found = played(trace(*(asked(0.01 * n) for n in range(100))), setup).outcome.figures(10.0)

    many, few = found.tenants["many"], found.tenants["few"]
    assert many.rejected / many.num_requests > few.rejected / few.num_requests
    assert many.rejected + few.rejected == found.rejected > 0


def test_a_fleets_router_keeps_objectives_that_it_would_miss_if_it_knew_none() -> None:
    setup = replace(
        SETUP,
        prefill=msgspec.structs.replace(DEVICE, max_batch_tokens=100),
        slo_classes=(SloClass.read("quick=4:0.3"), SloClass.read("slow=60,30:0.7")),
    )
    load = trace(*(asked(0.1 * number, output=2) for number in range(120)))

    knows = figures(load, setup).goodput_by_class
    knows_none = figures(load, setup, "cost-without-slos").goodput_by_class

    assert knows["quick"] > knows_none["quick"] + 0.1
    assert knows["slow"] == knows_none["slow"] == 1.0


def test_a_load_is_a_share_of_the_time_of_those_who_compute_prompts() -> None:
    """Ten prompts of 0.2 s on two replicas: 1 s of both, which is half of 2 s."""
    load = trace(*(asked(float(at_s)) for at_s in range(10)))

    sooner = at_load(load, 0.5, replace(SETUP, num_prefill=2))

    assert sooner.requests[-1].arrival_s == pytest.approx(2.0)


def test_simulated_steps_of_a_measured_machine_take_what_held_out_ones_took(tmp_path: Path) -> None:
    """One half of the passes is fitted; prompts, and then tokens, are simulated of the other."""
    lines = [line for line in MEASURED.read_text().splitlines() if not line.startswith("#")]
    rows = [row for row in lines[1:] if row.startswith("llama2-70b,a100-80gb,8,")]
    random.Random(0).shuffle(rows)
    half = tmp_path / "half.csv"
    half.write_text("\n".join((lines[0], *rows[::2])))
    device = measured_device(half, "llama2-70b,a100-80gb,8")
    setup = replace(
        SETUP,
        num_prefill=0,
        decode=msgspec.structs.replace(device, max_batch_tokens=65_536),
        links=Links(latency_s=0.0),
    )

    held_out = [
        row for row in csv.DictReader((lines[0], *rows[1::2])) if row["token_size"] == "128"
    ]
    errors = [error for row in held_out for error in _errors_of(row, setup)]

    assert len(errors) > 15 and median(errors) < 0.07


def _errors_of(row: dict[str, Any], setup: FleetSetup) -> list[float]:
    prompt, batch, output = (int(row[f"{name}_size"]) for name in ("prompt", "batch", "token"))
    load = trace(*(asked(0.0, prompt, output) for _ in range(batch)), block_size=None)
    found = figures(load, setup)
    pairs = [(found.itl_p50_s, float(row["token_time"]) / 1e3)]
    if batch == 1:
        pairs.append((found.p50_s, float(row["prompt_time"]) / 1e3))
    return [abs(simulated / measured - 1) for simulated, measured in pairs]


def test_devices_are_what_a_gateways_replicas_say_of_themselves() -> None:
    def row(token_s: float) -> dict[str, Any]:
        metrics = {
            "step_constant_seconds": 0.1,
            "step_token_seconds": token_s,
            "step_pair_seconds": 0.0,
            "step_context_seconds": 0.0,
            "step_request_seconds": 0.0,
            "step_times_spread": 0.05,
            "kv_block_tokens": 16.0,
            "kv_block_bytes": 1600.0,
            "max_chunk_tokens": 512.0,
        }
        return {"num_blocks": 99, "metrics": metrics}

    found = devices_of({"pools": {"prefill": [], "decode": [row(1e-3), row(3e-3)]}}, "url")

    assert found.prefill == found.decode
    assert found.decode.step_times.token_s == pytest.approx(2e-3)
    assert (found.decode.token_bytes, found.decode.max_batch_tokens) == (100.0, 512)
    with pytest.raises(InvalidConfig, match="send it some requests"):
        devices_of({"pools": {"prefill": [], "decode": [{"metrics": {}}]}}, "url")


def test_mistakes_name_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="llama2-70b,h100-80gb,8"):
        measured_device(MEASURED, "none")
    with pytest.raises(InvalidConfig, match="blocks"):
        devices_in(b'{"prefill": {"blocks": 1}}', "file")
    with pytest.raises(InvalidConfig, match="step-model, gossip, sessions, pulls"):
        parts(["sleep"])
    assert parts(["pulls"]) == {Part.PULLS}


@pytest.mark.parametrize("num_prefill", [0, 2])
def test_requests_of_a_gateway_that_dies_are_answered_by_another(num_prefill: int) -> None:
    """The last of them come when it is dead, others have tokens or wait in its line."""
    setup = replace(
        SETUP, num_prefill=num_prefill, num_decode=2, num_gateways=2, gateway_dies_s=1.5
    )

    fleet = played(crowd(80), setup)

    outcome = fleet.outcome
    assert len(outcome.served) == 80 and outcome.num_asked_again > 10
    assert {one.gateway for one in outcome.served if one.arrived_s > 1.5} == {1}
    assert [engine.pool.num_in_use for engine in fleet.engines] == [0] * len(fleet.engines)


def test_a_gateway_that_joins_finds_what_replicas_have_cached() -> None:
    """Of two that would be equal to it, one has the prompt, and had it before the gateway was."""
    setup = replace(SETUP, num_prefill=0, num_decode=2, gateway_joins_s=10.0)
    load = trace(*(asked(20.0 * number, 100, 2, range(9)) for number in range(12)))

    outcome = Fleet(load, setup, "longest-match", seed=0).play()

    there = [one for one in outcome.served if one.gateway == 1]
    assert there and outcome.served[0].num_cached == 0
    assert [one.num_cached for one in there] == [90] * len(there)
