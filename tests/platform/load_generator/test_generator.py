"""Loads on a server with known delays, in virtual time: what is reported is what was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice, pairwise

import pytest
from tests.platform.load_generator.virtual_time import in_virtual_time

from baton.platform.load_generator.arrivals import Arrivals
from baton.platform.load_generator.doubts import doubts
from baton.platform.load_generator.generator import LoadGenerator, Record, SendOptions
from baton.platform.load_generator.outcome import Ending, Exchange, Usage
from baton.platform.load_generator.slo import Slo
from baton.platform.load_generator.summary import summarize
from baton.platform.load_generator.workload import LoadOptions, PlannedRequest, Workload, plan
from baton.platform.traces.trace import Trace, TraceRequest

NUM_TOKENS = 5
TTFT_S, GAP_S = 0.5, 0.1
E2E_S = TTFT_S + (NUM_TOKENS - 1) * GAP_S

WAITING = SendOptions()


class SlowServer:
    """Answers with known delays, but for what `endings` says of the first requests."""

    def __init__(self, endings: Iterator[Exchange]) -> None:
        self._endings = endings

    async def ask(self, body: bytes) -> Exchange:
        if (exchange := next(self._endings, None)) is not None:
            if exchange.ending is Ending.TIMED_OUT:
                await asyncio.sleep(1e9)
            return exchange
        now = asyncio.get_running_loop().time
        times = []
        await asyncio.sleep(TTFT_S)
        for _ in range(NUM_TOKENS):
            times.append(now())
            await asyncio.sleep(GAP_S)
        usage = Usage(prompt_tokens=100, completion_tokens=NUM_TOKENS, cached_tokens=25)
        return Exchange(ending=Ending.COMPLETED, token_times=times, usage=usage)


def ran(
    load: LoadOptions,
    trace: Trace | None = None,
    send: SendOptions = WAITING,
    endings: tuple[Exchange, ...] = (),
    meanwhile: Callable[[LoadGenerator], None] = lambda _: None,
) -> Record:
    async def main() -> Record:
        clock = asyncio.get_running_loop().time
        generator = LoadGenerator(SlowServer(iter(endings)), lambda _: b"", send, clock)
        meanwhile(generator)
        return await generator.run(plan(load, trace))

    return in_virtual_time(main())


def session(name: str, *gaps_s: float) -> list[TraceRequest]:
    return [
        TraceRequest(session=name, turn=turn, gap_s=gap_s, input_length=100, output_length=5)
        for turn, gap_s in enumerate(gaps_s)
    ]


def of_sessions(*turns: TraceRequest) -> Trace:
    return Trace(name="sessions", requests=turns, block_size=None)


EVENLY = Arrivals(rate=10, burstiness=None)


def test_an_open_loop_sends_on_time_whatever_the_server_does() -> None:
    record = ran(LoadOptions(arrivals=EVENLY, num_requests=30))

    summary = summarize(record, Slo())

    sent = sorted(outcome.sent_s for outcome in record.outcomes)
    assert sent == pytest.approx([index / 10 for index in range(30)])
    assert summary.ttft and summary.ttft.p99 == pytest.approx(TTFT_S)
    assert summary.itl and summary.itl.max == pytest.approx(GAP_S)
    assert summary.itl.num == 30 * (NUM_TOKENS - 1)
    assert summary.tpot and summary.tpot.mean == pytest.approx(GAP_S)
    assert summary.e2e and summary.e2e.p99 == pytest.approx(E2E_S)
    assert summary.late and summary.late.max == pytest.approx(0.0)
    assert summary.max_concurrency == 10  # a second each, ten a second
    assert summary.hit_ratio == 0.25


def test_a_closed_loop_has_its_number_in_flight_and_no_more() -> None:
    record = ran(LoadOptions(concurrency=3, num_requests=9))

    summary = summarize(record, Slo())

    assert summary.max_concurrency == 3
    assert summary.mean_concurrency == pytest.approx(3.0)
    assert summary.requests_s == pytest.approx(3.0)


def test_a_turn_comes_after_the_answer_before_it_and_its_gap() -> None:
    turns = [*session("a", 1.0, 2.0, 0.0), *session("b", 0.0)]

    record = ran(LoadOptions(time_scale=0.5), of_sessions(*turns))

    of_a = [outcome for outcome in record.outcomes if outcome.request.session == "a"]
    assert [outcome.request.turn for outcome in of_a] == [0, 1, 2]
    assert [outcome.sent_s for outcome in of_a] == pytest.approx([0.5, 2.5, 3.5])
    assert len(record.outcomes) == 4


def test_everything_that_goes_wrong_is_a_miss_and_counted_by_its_kind() -> None:
    endings = (
        Exchange(ending=Ending.REJECTED, retry_after_s=1.0),
        Exchange(ending=Ending.CUT, token_times=(0.0,)),
        Exchange(ending=Ending.TIMED_OUT),
    )

    record = ran(
        LoadOptions(concurrency=1, num_requests=8), send=SendOptions(timeout_s=9), endings=endings
    )
    summary = summarize(record, Slo(ttft_s=1.0, itl_s=1.0))

    assert summary.endings == {
        Ending.COMPLETED: 5, Ending.REJECTED: 1, Ending.CUT: 1, Ending.TIMED_OUT: 1,
    }  # fmt: skip
    assert summary.good_share == 5 / 8
    assert summary.ttft and summary.ttft.num == 5
    assert summarize(record, Slo(tpot_s=0.05)).good_share == 0.0


def test_a_429_is_tried_again_when_it_says_and_the_wait_is_part_of_the_latency() -> None:
    busy = Exchange(ending=Ending.REJECTED, retry_after_s=3.0)

    record = ran(
        LoadOptions(concurrency=1, num_requests=1),
        send=SendOptions(is_retried=True),
        endings=(busy, busy),
    )

    (outcome,) = record.outcomes
    assert outcome.is_complete
    assert outcome.num_retries == 2
    assert outcome.ttft_s == pytest.approx(6.0 + TTFT_S)


def test_a_second_try_that_is_never_answered_has_timed_out() -> None:
    endings = (
        Exchange(ending=Ending.REJECTED, retry_after_s=1.0),
        Exchange(ending=Ending.TIMED_OUT),
    )

    record = ran(
        LoadOptions(concurrency=1, num_requests=1),
        send=SendOptions(timeout_s=9, is_retried=True),
        endings=endings,
    )

    (outcome,) = record.outcomes
    assert outcome.ending is Ending.TIMED_OUT and outcome.num_retries == 1


@pytest.mark.parametrize("num_written", [0, 2])
def test_a_prompt_that_cannot_be_written_ends_the_run_with_the_reason(num_written: int) -> None:
    """The first of a session, which is written ahead, or the second of one."""
    texts = iter([b""] * num_written)

    def compose(_: PlannedRequest) -> bytes:
        if (text := next(texts, None)) is None:
            raise OSError("no such word")
        return text

    async def main() -> None:
        clock = asyncio.get_running_loop().time
        generator = LoadGenerator(SlowServer(iter(())), compose, WAITING, clock)
        async with asyncio.timeout(60):
            turns = (*session("a", 0.0, 1.0), *session("b", 30.0))
            await generator.run(plan(LoadOptions(), of_sessions(*turns)))

    with pytest.raises(OSError, match="no such word"):
        in_virtual_time(main())


def test_nothing_is_sent_after_the_duration_and_what_was_sent_is_waited_for() -> None:
    record = ran(LoadOptions(arrivals=EVENLY, duration_s=2.0), send=SendOptions(duration_s=2.0))

    assert len(record.outcomes) == 20
    assert all(outcome.is_complete for outcome in record.outcomes)


def test_a_run_that_is_stopped_keeps_what_was_measured_so_far() -> None:
    def stop_soon(generator: LoadGenerator) -> None:
        asyncio.get_running_loop().call_later(2.05, generator.stop)

    record = ran(LoadOptions(arrivals=EVENLY), meanwhile=stop_soon)
    summary = summarize(record, Slo(ttft_s=1.0))

    assert record.is_interrupted
    assert summary.endings == {Ending.COMPLETED: 11, Ending.INTERRUPTED: 10}
    assert summary.good_share == 1.0


def test_a_generator_that_sent_late_says_that_it_is_not_to_be_trusted() -> None:
    record = ran(LoadOptions(arrivals=EVENLY, num_requests=200))
    late = [replace(one, due_s=one.sent_s - 0.2) for one in record.outcomes]
    spoilt = replace(record, outcomes=late)

    honest, doubted = (
        doubts(summarize(one, Slo()), [], is_open_loop=True) for one in (record, spoilt)
    )

    assert not any("sent late" in doubt for doubt in honest)
    assert any("sent late (p99 200 ms)" in doubt for doubt in doubted)


def test_hits_that_this_run_cannot_have_made_are_said_to_be_of_another() -> None:
    record = ran(LoadOptions(arrivals=EVENLY, num_requests=9))  # told: 25 % cached

    (doubt,) = doubts(summarize(record, Slo()), [], is_open_loop=False)

    assert "another seed" in doubt


def test_gaps_of_a_poisson_process_have_the_rate_and_its_variance() -> None:
    times = list(islice(Arrivals(rate=50).times(seed=1), 4000))

    gaps = [later - sooner for sooner, later in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)

    assert mean == pytest.approx(1 / 50, rel=0.1)
    assert variance / mean**2 == pytest.approx(1.0, rel=0.15)


def test_a_burst_comes_at_once_and_keeps_the_rate() -> None:
    times = list(islice(Arrivals(rate=10, burstiness=None, burst=4).times(seed=0), 9))

    assert times == pytest.approx([0, 0, 0, 0, 0.4, 0.4, 0.4, 0.4, 0.8])


def test_a_trace_with_a_limit_sends_its_first_requests_at_its_own_times() -> None:
    requests = tuple(
        TraceRequest(arrival_s=float(second), input_length=10, output_length=1)
        for second in range(5)
    )
    trace = Trace(name="trace", requests=requests, block_size=None)

    workload: Workload = plan(LoadOptions(num_requests=3, time_scale=2.0), trace)

    assert [chain.starts_s for chain in workload.chains] == [0.0, 2.0, 4.0]
    assert workload.num_requests == 3
