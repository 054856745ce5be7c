"""Steps as a trace file for chrome://tracing and Perfetto.

track "engine"    step | draft | schedule | forward | sample
track "model"     each part of each layer, as it ran
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from baton.platform.instruments.step_watch import StepTime

PROCESS, ENGINE_TRACK, MODEL_TRACK = 1, 1, 2
TRACKS = {ENGINE_TRACK: "engine", MODEL_TRACK: "model"}


def chrome_trace(steps: Sequence[StepTime]) -> dict[str, Any]:
    """The steps in the JSON object format of trace events; times are microseconds."""
    begin = min((step.started_at for step in steps), default=0.0)
    events = [_name_of_track(track, name) for track, name in TRACKS.items()]
    for number, step in enumerate(steps):
        events += _events(step, number, begin)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _events(step: StepTime, number: int, begin: float) -> Iterator[dict[str, Any]]:
    at = step.started_at - begin
    kind = "prefill" if step.is_prefill else "decode"
    about = {"tokens": step.num_tokens, "requests": step.num_requests, "step": number}
    yield _event(f"step ({kind})", at, step.step_s, ENGINE_TRACK, about)
    for name, took in (
        ("draft", step.draft_s),
        ("schedule", step.schedule_s),
        ("forward", step.forward_s),
        ("sample", step.sample_s),
    ):
        yield _event(name, at, took, ENGINE_TRACK, {})
        at += took
    if step.pass_s:
        yield _event("pass", step.pass_at - begin, step.pass_s, MODEL_TRACK, {})
        head_at = step.pass_at - begin + step.pass_s
        yield _event("head", head_at, step.head_s, MODEL_TRACK, {})
    for span in step.spans:
        yield _event(span.name, span.started_at - begin, span.seconds, MODEL_TRACK, {})


def _event(
    name: str, at_s: float, took_s: float, track: int, about: dict[str, Any]
) -> dict[str, Any]:
    return {
        "name": name,
        "ph": "X",
        "ts": at_s * 1e6,
        "dur": took_s * 1e6,
        "pid": PROCESS,
        "tid": track,
        "args": about,
    }


def _name_of_track(track: int, name: str) -> dict[str, Any]:
    return {
        "name": "thread_name",
        "ph": "M",
        "pid": PROCESS,
        "tid": track,
        "args": {"name": name},
    }
