"""A trace that Perfetto opens."""

from __future__ import annotations

import json

from tests.platform.instruments.steps import make_step

from baton.platform.instruments.chrome_trace import chrome_trace


def test_a_trace_begins_at_zero_and_is_json() -> None:
    trace = chrome_trace([make_step(started_at=50.0), make_step(started_at=50.5)])

    events = json.loads(json.dumps(trace))["traceEvents"]

    complete = [event for event in events if event["ph"] == "X"]
    assert min(event["ts"] for event in complete) == 0
    assert all(event["dur"] >= 0 for event in complete)
    assert {event["ph"] for event in events} == {"X", "M"}
    steps = [event for event in complete if event["name"].startswith("step")]
    assert [event["args"]["step"] for event in steps] == [0, 1]
    assert steps[1]["ts"] == 500_000


def test_what_a_step_did_lies_within_it() -> None:
    events = chrome_trace([make_step()])["traceEvents"]
    step = next(event for event in events if event["name"].startswith("step"))
    end = step["ts"] + step["dur"]

    for event in events:
        if event["ph"] == "X":
            assert step["ts"] <= event["ts"]
            assert event["ts"] + event["dur"] <= end + 1e-6


def test_a_trace_of_no_steps_has_no_events_but_names() -> None:
    assert {event["ph"] for event in chrome_trace([])["traceEvents"]} == {"M"}
