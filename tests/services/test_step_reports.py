"""Reports of short steps reach the event loop together, and none is late, lost or out of order."""

from __future__ import annotations

from collections import deque

from baton.core.clock import ManualClock
from baton.core.sampling import SamplingParams
from baton.decode_service.step_reports import KEEP_S, StepReports
from baton.engine.request.request import Request
from baton.engine.request.step_report import RequestOutput, StepReport

SHORT_S = KEEP_S / 8


class Harness:
    """Steps that take as long as the test says; `told` counts how often the loop was woken."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.told = 0
        self.reports = StepReports(self._tell, self.clock)

    def step(self, report: StepReport, seconds: float = SHORT_S) -> StepReport:
        self.clock.advance(seconds)
        self.reports.put(report)
        return report

    def _tell(self) -> None:
        self.told += 1


REQUEST = Request("r", range(4), sampling=SamplingParams())


def make_report(
    *, is_finished: bool = False, num_tokens: int = 1, num_waiting: int = 0, has_output: bool = True
) -> StepReport:
    output = RequestOutput(REQUEST, is_finished, num_run=1, tokens=(7,))
    return StepReport(
        outputs=(output,) if has_output else (),
        num_tokens=num_tokens,
        num_requests=1,
        num_running=1,
        num_waiting=num_waiting,
    )


def begin() -> Harness:
    """A prompt's step is over and its token on its way; decoding follows."""
    harness = Harness()
    harness.step(make_report(num_tokens=100), seconds=1.0)
    harness.reports.take()
    assert harness.told == 1
    return harness


def test_short_steps_are_told_together_and_in_order() -> None:
    harness = begin()

    put = [harness.step(make_report()) for _ in range(8)]

    assert harness.told == 2
    assert harness.reports.take() == put


def test_no_token_is_kept_back_longer_than_the_limit() -> None:
    harness = begin()
    put_at: list[float] = []

    for _ in range(100):
        harness.step(make_report())
        put_at.append(harness.clock())
        if harness.told > 1:
            assert harness.clock() - put_at[0] <= KEEP_S
            harness.told = 1
            assert len(harness.reports.take()) == len(put_at)
            put_at.clear()


def test_a_long_step_is_told_at_once() -> None:
    harness = begin()

    harness.step(make_report(), seconds=KEEP_S)

    assert harness.told == 2


def test_a_first_token_is_told_at_once() -> None:
    harness = begin()

    harness.step(make_report(num_tokens=2))

    assert harness.told == 2


def test_a_last_token_is_told_at_once_with_what_was_kept_back() -> None:
    harness = begin()
    kept = harness.step(make_report())
    assert harness.told == 1

    last = harness.step(make_report(is_finished=True))

    assert harness.told == 2
    assert harness.reports.take() == [kept, last]


def test_nothing_is_kept_back_while_somebody_waits_whose_prompt_may_come_next() -> None:
    harness = begin()

    harness.step(make_report(num_waiting=1))

    assert harness.told == 2


def test_a_step_without_a_token_lets_go_what_was_kept_back() -> None:
    harness = begin()
    kept = harness.step(make_report())

    harness.step(make_report(has_output=False, num_tokens=0))

    assert harness.told == 2
    assert harness.reports.take() == [kept]


def test_what_was_kept_back_leaves_before_a_command() -> None:
    harness = begin()
    kept = harness.step(make_report())

    harness.reports.flush()
    harness.reports.flush()

    assert harness.told == 2
    assert harness.reports.take() == [kept]
    harness.reports.flush()
    assert harness.told == 2


def test_a_step_that_ends_while_reports_are_taken_wakes_the_loop_again() -> None:
    harness = begin()
    first, late = harness.step(make_report(), seconds=1.0), make_report()

    class MeanwhileAnother(deque[StepReport]):
        def popleft(self) -> StepReport:
            harness.step(late, seconds=1.0)
            return super().popleft()

    harness.reports._reports = MeanwhileAnother([first])

    assert harness.reports.take() == [first]
    assert harness.told == 3


def test_the_loop_is_woken_once_for_all_that_comes_before_it_has_taken() -> None:
    harness = begin()

    put = [harness.step(make_report(), seconds=1.0) for _ in range(3)]

    assert harness.told == 2
    assert harness.reports.take() == put
    harness.step(make_report(), seconds=1.0)
    assert harness.told == 3
