"""Whether the KV of one prompt comes on one stream, or on one for each pair of ranks. Pure.

    ranks of P      | heads 0 1 | heads 2 3 |       two streams: each piece is sent from the memory
                          |           |             of one rank and written to that of one rank, so
    ranks of D      | heads 0 1 | heads 2 3 |       heads are neither joined nor split

Each stream costs both sides an opening, so short prompts come on one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from baton.core.kv_layout import KvLayout
from baton.kv_transfer.layouts.plan import RankStream, plan_streams


def rank_streams(
    senders: Sequence[KvLayout],
    runs: Sequence[Sequence[range]],
    receiver: KvLayout,
    receiver_runs: Sequence[range],
    *,
    max_streams: int,
) -> tuple[RankStream, ...]:
    """The streams that bring each head of the receiver exactly once, of `senders` by their number.

    `runs` are the senders' `head_runs`, in this order; where some are not known, as on a device,
    nothing is split. Raises LayoutMismatch if there is no way.
    """
    [whole] = plan_streams(senders, [receiver])
    is_split = any(len(of_one) > 1 for of_one in (*runs, receiver_runs))
    if max_streams <= len(whole) or not is_split or not all((*runs, receiver_runs)):
        return whole
    if not all(_is_sent_unchanged(sender, receiver) for sender in senders):
        return whole
    numbers = [number for number, of_sender in enumerate(runs) for _ in of_sender]
    parts = [
        part
        for sender, of_sender in zip(senders, runs, strict=True)
        for part in _parts(sender, of_sender)
    ]
    plan = plan_streams(parts, _parts(receiver, receiver_runs))
    streams = [
        replace(stream, sender=numbers[stream.sender]) for of_rank in plan for stream in of_rank
    ]
    return tuple(streams) if len(streams) <= max_streams else whole


def _is_sent_unchanged(sender: KvLayout, receiver: KvLayout) -> bool:
    """Its blocks are not regrouped, and nothing comes with each stream that is no rank's own."""
    is_alike = (sender.dtype, sender.block_size) == (receiver.dtype, receiver.block_size)
    return is_alike and len({*sender.planes}) == len({*receiver.planes}) == 1


def _parts(layout: KvLayout, runs: Sequence[range]) -> list[KvLayout]:
    """The layouts of the ranks."""
    return [replace(layout, first_kv_head=run.start, num_kv_heads=len(run)) for run in runs]
