"""Reads a gateway's capture (GET /debug/decisions): a trace with its live outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from baton.core.errors import InvalidConfig
from baton.platform.traces.trace import Trace, TraceRequest
from baton.router.explain.capture import CapturedDecision, CapturedRequest, CaptureHead

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    head: CaptureHead
    trace: Trace
    """The requests whose prompts one of the head's replicas computed, in order of arrival."""
    decisions: Sequence[CapturedDecision]
    """The placement decision of each request of the trace."""
    num_left_out: int
    """Requests whose prompts other replicas computed: those that decode, for instance."""


def read_capture(file: Path) -> Capture:
    """Raises InvalidConfig that names file, line and field, or OSError."""
    lines = file.read_bytes().splitlines()
    head = _decoded(file, 1, lines[0] if lines else b"", CaptureHead)
    found = [
        _decoded(file, number, line, CapturedRequest) for number, line in enumerate(lines[1:], 2)
    ]
    names = {one.replica for one in head.replicas}
    known = [one for one in found if one.decision.computes in names]
    if not known:
        raise InvalidConfig(
            f"{file}: no prompt in it was computed by one of its replicas; capture while they work"
        )
    known.sort(key=lambda one: (one.timestamp, one.decision.request_id))
    first_ms = known[0].timestamp
    requests = tuple(
        TraceRequest(
            input_length=one.input_length,
            output_length=one.output_length,
            arrival_s=(one.timestamp - first_ms) / 1e3,
            hash_ids=one.hash_ids,
        )
        for one in known
    )
    return Capture(
        head=head,
        trace=Trace(name=file.name, requests=requests, block_size=head.block_size),
        decisions=[one.decision for one in known],
        num_left_out=len(found) - len(known),
    )


def _decoded(file: Path, number: int, line: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.DecodeError as error:  # names the field
        raise InvalidConfig(
            f"{file}, line {number}: {error}; give what GET /debug/decisions of a gateway answers"
        ) from None
