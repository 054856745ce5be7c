"""Every byte of every head of every block arrives exactly once on every rank that holds it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.errors import LayoutMismatch
from baton.core.kv_layout import SCALE_BYTES, KvLayout
from baton.kv_transfer.layouts.plan import BlockPlacement, RankStream, placement, plan_streams

LAYOUT = KvLayout(
    model_fingerprint=b"model",
    dtype="float16",
    num_layers=1,
    num_kv_heads=8,
    head_dim=2,
    block_size=4,
)
LATENT = replace(LAYOUT, num_kv_heads=1, head_dim=6, num_vectors=1)
SIZES = (1, 2, 4, 8)
each_pair = pytest.mark.parametrize(("num_p", "num_d"), list(product(SIZES, SIZES)))


def ranks(layout: KvLayout, num_ranks: int) -> list[KvLayout]:
    """Of tensor-parallel ranks: heads are split, or replicated when they are too few.

    So are latents, which count as one head.
    """
    num_heads = max(1, layout.num_kv_heads // num_ranks)
    return [
        replace(
            layout,
            num_kv_heads=num_heads,
            first_kv_head=rank * layout.num_kv_heads // num_ranks,
        )
        for rank in range(num_ranks)
    ]


Name = tuple[str, int, int, int, int]
"""Item or scale, head, token, K or V, byte of the token's part."""


def names(layout: KvLayout, block: int) -> list[Name | None]:
    """What each byte of one block holds, in the order DESIGN gives; None in the padding."""
    found: list[Name | None] = []
    tokens = range(block * layout.block_size, (block + 1) * layout.block_size)
    vectors = range(layout.num_vectors)
    for head in range(layout.first_kv_head, layout.stop_kv_head):
        unit: list[Name | None] = [
            ("item", head, token, vector, byte)
            for vector, token, byte in product(vectors, tokens, range(layout.token_bytes))
        ]
        if layout.has_scales:
            unit += [
                ("scale", head, token, vector, byte)
                for vector, token, byte in product(vectors, tokens, range(SCALE_BYTES))
            ]
        found += unit + [None] * (layout.unit_bytes - len(unit))
    return found


def arrivals(place: BlockPlacement, tokens: range) -> Counter[Name]:
    """Follow every copy of a stream; each byte must go where the receiver keeps just that byte."""
    arrived: Counter[Name] = Counter()
    for block in place.blocks(tokens):
        source = names(place.placed, block)
        for copy in place.copies(block, tokens):
            moved = source[copy.start : copy.start + copy.num_bytes]
            kept = names(place.receiver, copy.block)[copy.target : copy.target + copy.num_bytes]
            assert moved == kept
            arrived.update(name for name in moved if name is not None)
    return arrived


@each_pair
@pytest.mark.parametrize("num_heads", [1, 2, 4, 8])
def test_each_head_comes_once_to_each_rank_that_holds_it(
    num_p: int, num_d: int, num_heads: int
) -> None:
    layout = replace(LAYOUT, num_kv_heads=num_heads)
    senders, receivers = ranks(layout, num_p), ranks(layout, num_d)

    plan = plan_streams(senders, receivers)

    for streams, receiver in zip(plan, receivers, strict=True):
        heads = [head for s in streams for head in range(s.first_head, s.stop_head)]
        assert heads == list(range(receiver.first_kv_head, receiver.stop_kv_head))
        for stream in streams:
            sender = senders[stream.sender]
            assert sender.first_kv_head <= stream.first_head
            assert stream.stop_head <= sender.stop_kv_head


@each_pair
@pytest.mark.parametrize("num_heads", [1, 2, 4, 8])
def test_the_senders_share_the_work_evenly(num_p: int, num_d: int, num_heads: int) -> None:
    layout = replace(LAYOUT, num_kv_heads=num_heads)

    plan = plan_streams(ranks(layout, num_p), ranks(layout, num_d))

    loads = Counter({rank: 0 for rank in range(num_p)})
    for streams in plan:
        loads.update({stream.sender: stream.num_heads for stream in streams})
    assert max(loads.values()) - min(loads.values()) <= 1
    # No receiver asks more senders than it must.
    assert all(len(streams) == max(1, min(num_p, num_heads) // num_d) for streams in plan)


@given(st.data())
def test_every_byte_that_is_missing_arrives_once_where_it_belongs_and_nothing_else(
    data: st.DataObject,
) -> None:
    num_p, num_d = data.draw(st.sampled_from(SIZES)), data.draw(st.sampled_from(SIZES))
    sent, kept = data.draw(st.tuples(st.sampled_from(SIZES), st.sampled_from(SIZES)))
    of_heads = replace(
        LAYOUT,
        num_kv_heads=data.draw(st.sampled_from(SIZES)),
        dtype=data.draw(st.sampled_from(["float16", "int8"])),
    )
    layout = data.draw(st.sampled_from([of_heads, LATENT]))
    num_tokens = data.draw(st.integers(1, 20))
    num_cached = kept * data.draw(st.integers(0, (num_tokens - 1) // kept))
    tokens = range(num_cached, num_tokens)
    senders = ranks(replace(layout, block_size=sent), num_p)
    receivers = ranks(replace(layout, block_size=kept), num_d)

    plan = plan_streams(senders, receivers)

    for streams, receiver in zip(plan, receivers, strict=True):
        arrived: Counter[Name] = Counter()
        for stream in streams:
            arrived += arrivals(placement(senders[stream.sender], stream, receiver), tokens)
        wanted = {
            name
            for block in range(-(-num_tokens // kept))
            for name in names(receiver, block)
            if name is not None and name[2] in tokens
        }
        extra = arrived.keys() - wanted
        assert arrived.keys() >= wanted
        assert set(arrived.values()) == {1}
        # Whole units travel between equal layouts: the unused end of the last block comes along.
        assert not extra or sent == kept
        assert all(name[2] >= num_tokens for name in extra)


@each_pair
def test_one_sender_serves_each_receiver_of_latents_and_they_take_turns(
    num_p: int, num_d: int
) -> None:
    plan = plan_streams(ranks(LATENT, num_p), ranks(LATENT, num_d))

    assert [len(streams) for streams in plan] == [1] * num_d
    assert [streams[0].sender for streams in plan] == [rank % num_p for rank in range(num_d)]


def test_a_latent_is_one_vector_a_token() -> None:
    assert LATENT.is_latent and not LAYOUT.is_latent
    assert LATENT.unit_bytes == LATENT.block_bytes == 4 * 6 * 2
    with pytest.raises(ValueError, match="of one head"):
        replace(LATENT, num_kv_heads=2)
    with pytest.raises(ValueError, match="as wide as they are"):
        replace(LATENT, dtype="int8")


@pytest.mark.parametrize("other", [{"dtype": "float16"}, {"dtype": "int4", "block_size": 8}])
def test_what_is_in_four_bits_goes_only_where_it_is_kept_alike(other: dict[str, Any]) -> None:
    sealed = replace(LAYOUT, dtype="int4", block_size=4)
    kept = replace(LAYOUT, **{"block_size": 4, **other})

    for sender, receiver in ((sealed, kept), (kept, sealed)):
        with pytest.raises(LayoutMismatch, match="one is sealed"):
            plan_streams([sender], [receiver])
    assert plan_streams([sealed], [sealed])


def test_equal_layouts_take_one_copy_a_block() -> None:
    [[stream]] = plan_streams([LAYOUT], [LAYOUT])
    place = placement(LAYOUT, stream, LAYOUT)

    [copy] = place.copies(3, range(0, 100))

    assert stream == RankStream(sender=0, first_head=0, stop_head=8)
    assert place.is_direct
    assert (copy.block, copy.start, copy.target) == (3, 0, 0)
    assert copy.num_bytes == LAYOUT.layer_block_bytes


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"model_fingerprint": b"\xff"}, "model_fingerprint is 6d6f64656c .* ff at the receiver"),
        ({"num_layers": 3}, "num_layers is 1 at the sender, 3 at the receiver"),
        ({"head_dim": 4}, "head_dim is 2 at the sender, 4 at the receiver"),
        (
            {"num_kv_heads": 1, "num_vectors": 1},
            "num_vectors is 2 at the sender, 1 at the receiver",
        ),
        ({"block_size": 6}, "block_size is 4 .* 6 at the receiver, and neither divides"),
        ({"num_kv_heads": 9}, "no sender holds KV head 8"),
        ({"first_kv_head": 8}, "no sender holds KV head 8"),
    ],
)
def test_kv_of_another_kind_is_refused_by_name(change: dict[str, object], what: str) -> None:
    with pytest.raises(LayoutMismatch, match=what):
        plan_streams([LAYOUT], [replace(LAYOUT, **change)])  # type: ignore[arg-type]


def test_all_differences_are_named_at_once() -> None:
    with pytest.raises(LayoutMismatch, match=r"num_layers is .*; head_dim is .*; block_size is"):
        plan_streams([LAYOUT], [replace(LAYOUT, num_layers=2, head_dim=1, block_size=3)])


def test_units_with_scales_are_aligned() -> None:
    layout = replace(LAYOUT, dtype="int8", head_dim=100, block_size=3)

    assert layout.items_bytes == 2 * 3 * 100
    assert layout.unit_bytes == 640  # 600 of items, 24 of scales
