"""KV that is computed in one dtype and kept in another, converted on arrival."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import permutations

import pytest
import torch
from tests.kv_transfer.replicas import LAYOUT as SMALL
from tests.kv_transfer.replicas import (
    PROMPT,
    TIME_LEFT_S,
    TRANSFER,
    DecodeReplica,
    PrefillReplica,
    request_holder,
)
from torch import Tensor

from baton.core.kv_layout import ITEM_BYTES, KvLayout
from baton.core.owner_thread import Inline
from baton.kernels.paging.kv_quantize import QUANTIZED_DTYPES, dequantize, quantize
from baton.kv_transfer.handoff.reservation import KvSource, WantedKv
from baton.kv_transfer.layouts.convert import converted
from baton.kv_transfer.receiving.fetch import Fetcher
from baton.kv_transfer.sending.outbox import Outbox
from baton.kv_transfer.transport.memory import MemoryTransport, Switchboard

LAYOUT = replace(SMALL, num_kv_heads=2, head_dim=24, block_size=4)
LARGEST = {"int8": 127, "fp8": 448}
RELATIVE_ERROR = {"bfloat16": 2**-8, "float16": 2**-11}
"""Half a unit in the last place."""


def parts(data: memoryview | bytes, layout: KvLayout) -> tuple[Tensor, Tensor | None]:
    """Items [units, 2, tokens, head_dim] and scales [units, 2, tokens], as the layout says."""
    all_items, all_scales = [], []
    shape = (2, layout.block_size, layout.head_dim)
    for start in range(0, len(data), layout.unit_bytes):
        unit = bytearray(data[start : start + layout.unit_bytes])
        dtype = QUANTIZED_DTYPES.get(layout.dtype) or getattr(torch, layout.dtype)
        all_items.append(torch.frombuffer(unit[: layout.items_bytes], dtype=dtype).view(shape))
        if layout.has_scales:
            stop = layout.items_bytes + 2 * layout.block_size * 4
            scales = torch.frombuffer(unit[layout.items_bytes : stop], dtype=torch.float32)
            all_scales.append(scales.view(shape[:2]))
            assert not any(unit[stop:])
    return torch.stack(all_items), torch.stack(all_scales) if all_scales else None


def values(data: memoryview | bytes, layout: KvLayout) -> Tensor:
    items, scales = parts(data, layout)
    return items.float() if scales is None else dequantize(items, scales)


def made(x: Tensor, layout: KvLayout) -> memoryview:
    """`x` [units, 2, tokens, head_dim] as float32 bytes, in `layout` but for the dtype."""
    assert layout.dtype == "float32"
    return memoryview(x.contiguous().numpy().tobytes())


def random_kv(num_units: int, *, seed: int = 0) -> Tensor:
    shape = (num_units, 2, LAYOUT.block_size, LAYOUT.head_dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def bound(x: Tensor, dtype: str) -> Tensor:
    """The published error of a dtype that holds `x`."""
    if dtype in LARGEST:
        scale = x.abs().amax(dim=-1, keepdim=True) / LARGEST[dtype]
        exact = scale / 2 if dtype == "int8" else torch.maximum(x.abs() / 2**4, scale / 2**10)
        return exact * (1 + 2**-20) + x.abs() * 2**-22
    return x.abs() * RELATIVE_ERROR.get(dtype, 0.0)


@pytest.mark.parametrize("dtype", [name for name in ITEM_BYTES if name != "float32"])
def test_float32_becomes_what_the_format_promises(dtype: str) -> None:
    x = random_kv(3)

    data = converted(made(x, LAYOUT), LAYOUT, dtype)

    target = replace(LAYOUT, dtype=dtype)
    assert len(data) == 3 * target.unit_bytes
    assert ((values(data, target) - x).abs() <= bound(x, dtype)).all()


def test_the_bytes_are_items_then_scales_as_the_engine_will_read_them() -> None:
    x = random_kv(1)

    items, scales = parts(converted(made(x, LAYOUT), LAYOUT, "int8"), replace(LAYOUT, dtype="int8"))

    expected_items, expected_scales = quantize(x, torch.int8)
    assert items.equal(expected_items)
    assert scales is not None
    assert scales.equal(expected_scales)


@pytest.mark.parametrize(("sent", "kept"), list(permutations(ITEM_BYTES, 2)))
def test_every_pair_of_dtypes_loses_no_more_than_the_narrower_one(sent: str, kept: str) -> None:
    arriving = replace(LAYOUT, dtype=sent)
    data = (
        converted(made(random_kv(2), LAYOUT), LAYOUT, sent)
        if sent != "float32"
        else made(random_kv(2), LAYOUT)
    )
    x = values(data, arriving)

    back = values(converted(data, arriving, kept), replace(LAYOUT, dtype=kept))

    assert ((back - x).abs() <= bound(x, kept)).all()


def test_a_number_beyond_float16_stays_finite() -> None:
    x = random_kv(1).clone()
    x[0, 0, 0, 0], x[0, 0, 0, 1] = 1e6, -1e6

    data = converted(made(x, LAYOUT), LAYOUT, "float16")

    found = values(data, replace(LAYOUT, dtype="float16"))[0, 0, 0, :2]
    assert found.tolist() == [65504.0, -65504.0]


@pytest.mark.parametrize("kept", ["bfloat16", "int8", "fp8"])
@pytest.mark.parametrize("block_size", [2, 4, 8])
async def test_kv_is_converted_and_regrouped_on_its_way_into_the_pool(
    kept: str, block_size: int
) -> None:
    prefill = PrefillReplica(layout=LAYOUT)
    decode = DecodeReplica(layout=replace(LAYOUT, dtype=kept, block_size=block_size))
    switchboard = Switchboard()
    switchboard.plug("p", Outbox(prefill.sender, Inline()))
    fetcher = Fetcher(decode.receiver, Inline(), MemoryTransport(switchboard), clock=decode.clock)
    prefill.grant(decode.receiver.epoch)
    x = fill_with_numbers(prefill)
    source = KvSource(epoch=prefill.sender.epoch, address="p", layout=LAYOUT)
    wanted = WantedKv(
        transfer_id=TRANSFER, sources=(source,), tokens=PROMPT, salt=b"", time_left_s=TIME_LEFT_S
    )
    reservation = decode.receiver.reserve(wanted, 0.0)
    assert reservation is not None

    await fetcher.fetch(reservation)

    lease = decode.receiver.adopt(TRANSFER)
    for layer in range(LAYOUT.num_layers):
        blocks = [
            values(decode.pool.view(lease, index, layer), decode.layout)
            for index in range(reservation.num_blocks)
        ]  # each [heads, 2, tokens, head_dim]
        found = torch.cat(blocks, dim=2)[:, :, : len(PROMPT)]
        expected = x[layer][:, :, : len(PROMPT)]
        assert ((found - expected).abs() <= bound(expected, kept)).all()
    decode.pool.release(lease)
    await fetcher.close()
    while prefill.sender.lease_ids:
        await asyncio.sleep(0.001)


def fill_with_numbers(prefill: PrefillReplica) -> list[Tensor]:
    """Compute the prompt as numbers; by layer [heads, 2, tokens, head_dim]."""
    holder = request_holder(TRANSFER)
    num_blocks, layers = LAYOUT.num_blocks_for(len(PROMPT)), []
    for layer in range(LAYOUT.num_layers):
        blocks = [random_kv(2, seed=100 * layer + block) for block in range(num_blocks)]
        for block, x in zip(prefill.pool.table(holder), blocks, strict=True):
            prefill.cache.write(block, layer, made(x, LAYOUT))
        layers.append(torch.cat(blocks, dim=2))
    prefill.sender.publish(TRANSFER, len(PROMPT))
    prefill.finish(TRANSFER)
    return layers
