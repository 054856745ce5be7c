"""Blocks for tiers: a small layout, and records whose bytes follow from their names."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from hashlib import shake_128

from baton.core.kv_layout import KvLayout
from baton.kv_transfer.tiers.media.record import BlockRecord, RecordFormat
from baton.kv_transfer.tiers.stack import TierStack

LAYOUT = KvLayout(
    model_fingerprint=b"model",
    dtype="float32",
    num_layers=2,
    num_kv_heads=2,
    head_dim=4,
    block_size=4,
)
FORMAT = RecordFormat(LAYOUT)
OTHER_FORMAT = RecordFormat(
    KvLayout(
        model_fingerprint=b"model",
        dtype="float16",
        num_layers=2,
        num_kv_heads=2,
        head_dim=4,
        block_size=4,
    )
)


def name_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def names_of(*numbers: int) -> list[bytes]:
    return [name_of(number) for number in numbers]


def payload_of(number: int, format_: RecordFormat = FORMAT) -> bytes:
    return shake_128(name_of(number)).digest(format_.layout.block_bytes)


def record_of(number: int, format_: RecordFormat = FORMAT) -> BlockRecord:
    return format_.make(name_of(number), bytearray(payload_of(number, format_)))


def is_record_of(record: BlockRecord, number: int) -> bool:
    return record.name == name_of(number) and record.payload == payload_of(number)


def becomes_true(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Wait for another thread's work."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.001)


async def all_written(stack: TierStack) -> None:
    """Wait until no block waits to be written to a slow tier."""
    async with asyncio.timeout(60):
        while any(v for name, v in stack.metrics().items() if "_waiting" in name):
            await asyncio.sleep(0.001)


async def read_all(stack: TierStack, names: list[bytes]) -> list[BlockRecord]:
    return [record async for batch in stack.read(names) for record in batch.records]
