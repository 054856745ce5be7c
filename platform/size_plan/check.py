"""Checks a forecast with the simulator, which plays every step and wait on the same device
model."""

from __future__ import annotations

from random import Random

import msgspec

from baton.platform.simulator.fleet.figures import FleetFigures
from baton.platform.simulator.fleet.play import Fleet
from baton.platform.simulator.fleet.setup import Device, FleetSetup
from baton.platform.size_plan.deployment import devices_of
from baton.platform.size_plan.question import Question
from baton.platform.size_plan.size import Option
from baton.platform.traces.trace import Trace, TraceRequest

POLICY = "cost"
SPARE = 2


def simulated(question: Question, option: Option, num_requests: int, seed: int) -> FleetFigures:
    """Simulated results of `num_requests` random arrivals on the chosen replicas."""
    devices = devices_of(question, option)
    setup = FleetSetup(
        num_prefill=0 if option.prefill is None else option.prefill.num_replicas,
        num_decode=option.decode.num_replicas,
        prefill=_without_spare(devices.prefill, question),
        decode=_without_spare(devices.decode, question),
        links=devices.links,
        is_noisy=False,
    )
    fleet = Fleet(poisson_trace(question, num_requests, seed), setup, POLICY, seed)
    return fleet.play().figures(question.promise.ttft_s)


def _without_spare(device: Device, question: Question) -> Device:
    """The device with as many blocks as its requests fill several times: others would keep
    prefixes, and here are none."""
    num_tokens = SPARE * (device.max_open * question.load.held_tokens + device.max_queued_tokens)
    num_blocks = min(device.num_blocks, -(-round(num_tokens) // device.block_size))
    return msgspec.structs.replace(device, num_blocks=num_blocks)


def poisson_trace(question: Question, num_requests: int, seed: int) -> Trace:
    """Gaps are exponential, prompts' lengths as scattered as the load's."""
    load, random = question.load, Random(seed)
    at_s, requests = 0.0, []
    for _ in range(num_requests):
        at_s += random.expovariate(load.rate)
        scale = 1.0
        if load.prompt_cv2 > 0:
            scale = random.gammavariate(1 / load.prompt_cv2, load.prompt_cv2)
        requests.append(
            TraceRequest(
                arrival_s=at_s,
                input_length=max(round(load.prompt_tokens * scale), 1),
                output_length=max(round(load.output_tokens), 1),
            )
        )
    return Trace(name="foreseen", requests=tuple(requests), block_size=None)
