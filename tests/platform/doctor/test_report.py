"""The diagnosis on a terminal as narrow as a pipe's."""

from __future__ import annotations

import io

from rich.console import Console

from baton.core.ids import ReplicaId
from baton.platform.doctor.finding import ok
from baton.platform.doctor.matrix import Size, TransportMeasurement
from baton.platform.doctor.report import show

RECEIVER, SENDER = ReplicaId("decode-wl9ptua4"), ReplicaId("prefill-ona8bam7")


def way(transport: str, rate: float, *, chosen: str = "") -> TransportMeasurement:
    sizes = tuple(
        Size(num_bytes=num_bytes, rounds_s=(num_bytes / rate,))
        for num_bytes in (64 << 10, 4 << 20, 16 << 20)
    )
    return TransportMeasurement(
        receiver=RECEIVER,
        sender=SENDER,
        transport=transport,
        latency_s=0.0015,
        sizes=sizes,
        chosen=chosen,
    )


def shown(*ways: TransportMeasurement) -> str:
    out = io.StringIO()
    show(Console(file=out, width=80), [ok("ports", "8000 is free")], ways)
    return out.getvalue()


def test_eighty_columns_hold_replicas_rates_and_the_reason_in_full() -> None:
    lines = shown(way("shm", 5.25e9, chosen="the fastest"), way("grpc", 0.75e9))

    assert f"{SENDER} -> {RECEIVER}, in GB/s" in lines
    assert lines.count("5.25") == lines.count("0.75") == 3
    assert "the fastest" in lines
    assert "…" not in lines


def test_without_replicas_there_is_no_table_of_ways() -> None:
    assert "taken" not in shown()
