"""Reads the devices of a simulated fleet.

FILE.json              {"prefill": {...}, "decode": {...}, "links": {...}}: fields of `setup.py`
URL of a gateway       as its replicas report about themselves: the mean of each role
FILE.csv:MODEL,HARDWARE,RANKS    measured passes in Splitwise's columns, fitted as a replica does
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from baton.core.errors import InvalidConfig
from baton.core.step_times import StepTimes, StepWork, prompt_work
from baton.engine.schedule.step_fit import StepFit
from baton.platform.simulator.fleet.setup import Device, Links

COEFFICIENTS = ("constant", "token", "pair", "context", "request")
MEASURED = ("model", "hardware", "tensor_parallel", "prompt_size", "batch_size", "token_size")
TIMES = ("prompt_time", "token_time")
"""Milliseconds: of a prompt, and from one token to the next."""
ENOUGH = 4
"""Times that measured passes are shown to the fit: it begins with a guess."""


class Devices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    prefill: Device
    decode: Device
    links: Links = Links()


def devices_in(text: bytes, name: str) -> Devices:
    """Read JSON. Raises InvalidConfig that names the field."""
    try:
        return msgspec.json.decode(text, type=Devices)
    except msgspec.DecodeError as error:
        raise InvalidConfig(
            f"--device {name}: {error}; give prefill, decode and, if you like, links"
        ) from None


def devices_of(status: Mapping[str, Any], name: str) -> Devices:
    """The devices that a gateway's /debug/status describes. Raises InvalidConfig if no replica
    knows its step times."""
    by_role = {role: _device_of(rows) for role, rows in status["pools"].items()}
    decode = by_role.get("decode")
    prefill = by_role.get("prefill") or decode
    if decode is None or prefill is None:
        raise InvalidConfig(
            f"--device {name}: its replicas have not run enough steps to tell how long they take; "
            "send it some requests"
        )
    return Devices(prefill=prefill, decode=decode)


def _device_of(rows: Sequence[Mapping[str, Any]]) -> Device | None:
    told = [row for row in rows if f"step_{COEFFICIENTS[0]}_seconds" in row.get("metrics", {})]
    if not told:
        return None

    def mean(metric: str) -> float:
        return fmean(row["metrics"][metric] for row in told)

    times = msgspec.convert(
        {
            "spread": mean("step_times_spread"),
            **{f"{name}_s": mean(f"step_{name}_seconds") for name in COEFFICIENTS},
        },
        StepTimes,
    )
    block_size = round(mean("kv_block_tokens"))
    return Device(
        step_times=times,
        num_blocks=min(row["num_blocks"] for row in told),
        block_size=block_size,
        token_bytes=mean("kv_block_bytes") / block_size,
        max_batch_tokens=round(mean("max_chunk_tokens")),
    )


def measured_device(file: Path, machine: str) -> Device:
    """`machine`: MODEL,HARDWARE,RANKS. Raises InvalidConfig if nothing was measured on it."""
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(line for line in stream if not line.startswith("#")))
    if missing := [name for name in (*MEASURED, *TIMES) if not rows or name not in rows[0]]:
        raise InvalidConfig(f"--device {file}: there is no column {missing[0]}")
    wanted = tuple(machine.split(","))
    steps = [step for row in rows if _machine(row) == wanted for step in _steps(row)]
    if not steps:
        known = sorted({",".join(_machine(row)) for row in rows})
        raise InvalidConfig(f"--device {file}:{machine}: give one of {'; '.join(known)}")
    return Device(step_times=fitted(steps))


def fitted(steps: Iterable[tuple[StepWork, float]]) -> StepTimes:
    """The coefficients that a replica would learn from these steps."""
    fit, now = StepFit(), 0.0
    for work, seconds in list(steps) * ENOUGH:
        now += seconds
        fit.add(work, seconds, now)
    return fit.times(now)


def _machine(row: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(row[name] for name in MEASURED[:3])


def _steps(row: Mapping[str, str]) -> Iterable[tuple[StepWork, float]]:
    """A prompt alone is one pass; those of several went through in several."""
    prompt, batch, output = (int(row[name]) for name in MEASURED[3:])
    if batch == 1:
        yield prompt_work(prompt, 0), float(row["prompt_time"]) / 1e3
    context = batch * (prompt + output // 2)
    yield StepWork(batch, 0, context, batch), float(row["token_time"]) / 1e3
