"""A schedule of requests: every load is a set of chains of requests, each begun at its time.

open loop      chains of one request; a chain begins when its request is due
sessions       a chain is a session; its next turn is due gap_s after the answer before it
concurrency    a limit of chains at a time: due ones wait for one to end
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import count, islice, repeat
from typing import NamedTuple

from baton.core.errors import InvalidConfig
from baton.platform.load_generator.arrivals import Arrivals
from baton.platform.traces.ticks import spread
from baton.platform.traces.trace import Trace, TraceRequest

NUM_REQUESTS = 200
"""Sent where neither a trace, nor a number, nor a duration says how many."""


class Source(IntEnum):
    """The namespace of a segment's key: equal keys of different sources are different tokens."""

    HASH_ID = 0
    REQUEST = 1
    SESSION = 2
    PREFIX = 3
    WARMUP = 4


class Segment(NamedTuple):
    """A stretch of a prompt. Equal source and key: equal tokens, as far as both reach."""

    source: Source
    key: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    index: int
    prompt: tuple[Segment, ...]
    output_length: int
    session: str | None = None
    turn: int = 0
    gap_s: float = 0.0
    """Seconds after the answer to the turn before it."""

    @property
    def input_length(self) -> int:
        return sum(segment.num_tokens for segment in self.prompt)


class Chain(NamedTuple):
    starts_s: float
    requests: tuple[PlannedRequest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthetic:
    """Requests that no trace gives: sizes, and what prompts share."""

    input_length: int = 512
    output_length: int = 128
    length_spread: float = 0.0
    """Lengths are even between (1 - spread) and (1 + spread) times those above."""
    shared_prefix: int = 0
    """Tokens at the beginning that prompts have in common, beside their own input_length."""
    num_prefixes: int = 1
    """A request draws one of so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Raises InvalidConfig where the options do not fit together."""

    arrivals: Arrivals | None = None
    concurrency: int | None = None
    num_requests: int | None = None
    duration_s: float | None = None
    time_scale: float = 1.0
    is_jittered: bool = True
    seed: int = 0
    synthetic: Synthetic = Synthetic()

    def check(self, trace: Trace | None) -> None:
        if trace is None and self.arrivals is None and self.concurrency is None:
            raise InvalidConfig("say how much to send: --rate, --concurrency or --trace FILE")
        if trace is None and self.time_scale != 1.0:
            raise InvalidConfig("--time-scale stretches the times of a --trace; there is none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    chains: Iterable[Chain]
    """Chains of requests, sorted by the time that they begin."""
    max_chains: int | None
    """Most chains that are open at once."""
    num_requests: int | None
    """None: as many as the duration has room for."""
    about: str


def plan(options: LoadOptions, trace: Trace | None) -> Workload:
    """Raises InvalidConfig where the options do not fit together."""
    options.check(trace)
    if trace is None:
        prompts = _synthetic_prompts(options.synthetic, options.seed)
        bare: Iterator[Chain] = (Chain(0.0, (request,)) for request in prompts)
        available = None
    else:
        jittered = spread(trace, seed=options.seed) if options.is_jittered else trace
        bare = iter(_trace_chains(jittered, options.time_scale))
        available = len(trace.requests)
    if options.arrivals is not None:
        bare = _starting_at(options.arrivals.times(options.seed), bare)
    elif options.concurrency is not None and not (trace and trace.is_closed_loop):
        bare = _starting_at(repeat(0.0), bare)
    limit = _limit(options, available)
    return Workload(
        chains=bare if limit is None else _first_requests(bare, limit),
        max_chains=options.concurrency,
        num_requests=limit if available is None or limit is None else min(limit, available),
        about=_about(options, trace),
    )


def warmup_requests(workload_like: Iterable[PlannedRequest], num: int) -> list[PlannedRequest]:
    """Requests as long as the first ones that are measured, and that share nothing with them."""
    return [
        replace(
            request,
            prompt=(Segment(Source.WARMUP, request.index, request.input_length),),
            session=None,
        )
        for request in islice(workload_like, num)
    ]


def _limit(options: LoadOptions, available: int | None) -> int | None:
    if options.num_requests is not None or options.duration_s is not None:
        return options.num_requests
    return NUM_REQUESTS if available is None else available


def _first_requests(chains: Iterator[Chain], limit: int) -> Iterator[Chain]:
    """Chains until they have `limit` requests; the last one may be cut short."""
    for chain in chains:
        if limit <= 0:
            return
        yield Chain(chain.starts_s, chain.requests[:limit])
        limit -= len(chain.requests)


def _starting_at(times_s: Iterator[float], chains: Iterator[Chain]) -> Iterator[Chain]:
    for chain, starts_s in zip(chains, times_s, strict=False):
        yield Chain(starts_s, chain.requests)


def _trace_chains(trace: Trace, time_scale: float) -> Iterator[Chain]:
    if not trace.is_closed_loop:
        for index, request in enumerate(trace.requests):
            planned = _planned(request, index, trace.block_size, Segment(Source.REQUEST, index, 0))
            yield Chain((request.arrival_s or 0.0) * time_scale, (planned,))
        return
    indices = count()
    found = [
        tuple(
            replace(
                _planned(turn, next(indices), trace.block_size, Segment(Source.SESSION, key, 0)),
                gap_s=turn.gap_s * time_scale,
            )
            for turn in turns
        )
        for key, turns in enumerate(trace.sessions().values())
    ]
    for turns in sorted(found, key=lambda turns: turns[0].gap_s):
        yield Chain(turns[0].gap_s, turns)


def _planned(
    request: TraceRequest, index: int, block_size: int | None, unhashed: Segment
) -> PlannedRequest:
    """Tokens that no hash id covers are the request's own, or the longer beginning of its
    session's."""
    segments: list[Segment] = []
    left = request.input_length
    for hash_id in request.hash_ids:
        size = min(left, block_size or left)
        segments.append(Segment(Source.HASH_ID, hash_id, size))
        left -= size
    if left:
        segments.append(unhashed._replace(num_tokens=left))
    return PlannedRequest(
        index=index,
        prompt=tuple(segments),
        output_length=request.output_length,
        session=request.session,
        turn=request.turn,
    )


def _synthetic_prompts(synthetic: Synthetic, seed: int) -> Iterator[PlannedRequest]:
    random_ = random.Random(f"sizes {seed}")
    for index in count():
        own = Segment(Source.REQUEST, index, _length(synthetic.input_length, synthetic, random_))
        prefix = Segment(
            Source.PREFIX, random_.randrange(synthetic.num_prefixes), synthetic.shared_prefix
        )
        yield PlannedRequest(
            index=index,
            prompt=(prefix, own) if synthetic.shared_prefix else (own,),
            output_length=_length(synthetic.output_length, synthetic, random_),
        )


def _length(mean: int, synthetic: Synthetic, random_: random.Random) -> int:
    spread_ = synthetic.length_spread
    return max(1, round(mean * random_.uniform(1.0 - spread_, 1.0 + spread_)))


def _about(options: LoadOptions, trace: Trace | None) -> str:
    said: list[str] = []
    if trace is None:
        sizes = options.synthetic
        said.append(f"prompts of {sizes.input_length + sizes.shared_prefix} tokens")
        said.append(f"answers of {sizes.output_length}")
    else:
        kind = "sessions" if trace.is_closed_loop else "requests"
        num = len(trace.sessions()) if trace.is_closed_loop else len(trace.requests)
        said.append(f"{trace.name}, {num} {kind}")
        if options.time_scale != 1.0:
            said.append(f"times x {options.time_scale:g}")
        is_timed = options.arrivals is None and options.concurrency is None
        if trace.tick_s and options.is_jittered and is_timed:
            said.append(f"arrivals spread over ticks of {trace.tick_s:g} s")
    if options.arrivals is not None:
        said.append(str(options.arrivals))
    if options.concurrency is not None:
        said.append(f"at most {options.concurrency} at once")
    return ", ".join(said)
