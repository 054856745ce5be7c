"""The bound of all policies: no waiting, and one unlimited cache shared by all.

The mean is a true bound: each block is computed at least once, by its first request. The
percentiles are only those of this order of arrival.
"""

from __future__ import annotations

from baton.platform.simulator.arrivals import Arrivals
from baton.platform.simulator.block_names import BlockNames
from baton.platform.simulator.outcome import Outcome, Served
from baton.platform.simulator.setup import Setup
from baton.platform.traces.trace import Trace
from baton.router.speeds.speed import ConstantRate


def play_limit(trace: Trace, setup: Setup, seed: int) -> Outcome:
    """Play the whole trace; all replicas are one, and equally busy."""
    names_of = BlockNames(trace, setup.block_size, seed).of
    speed = ConstantRate(tokens_per_s=setup.tokens_per_s)
    arrivals = Arrivals(trace)
    known: set[bytes] = set()
    outcome = Outcome()
    busy_s = ended_s = 0.0
    while arrivals.next_s < float("inf"):
        arrival = arrivals.pop()
        request, names = arrival.request, names_of(arrival.request)
        num_held = next((at for at, name in enumerate(names) if name not in known), len(names))
        known.update(names[num_held:])
        num_cached = min(num_held * setup.block_size, request.input_length - 1)
        work_s = speed.prefill_s(request.input_length, num_cached)
        first_token_s = arrival.at_s + work_s
        slo = setup.slo_of(seed, request.session or f"{arrival.place}")
        outcome.serve(Served(work_s, arrival.place, request.input_length, num_cached, slo))
        busy_s += work_s
        ended_s = max(ended_s, first_token_s)
        arrivals.answered(arrival, first_token_s + setup.decode_s(request.output_length))
    outcome.ended(ended_s, [busy_s / setup.num_replicas] * setup.num_replicas)
    return outcome
