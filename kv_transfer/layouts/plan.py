"""How the KV of some sender ranks becomes that of some receiver ranks. Pure.

    senders' layouts, receivers' layouts --> streams       which rank reads which heads from which
    sender's block --> spans --> copies                    which bytes of it go where

Every receiver rank reads each of its heads from exactly one sender rank. A rank holds a run of
heads; several may hold the same ones (more ranks than heads, or a latent that all ranks share), and
are then read evenly. Blocks travel in the sender's layout and are regrouped on arrival:

    sender, 2 tokens a block      | k0 k1 v0 v1 | k2 k3 v2 v3 |
    receiver, 4 tokens a block    | k0 k1 k2 k3 v0 v1 v2 v3 |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise

from baton.core.errors import LayoutMismatch
from baton.core.kv_layout import SCALE_BYTES, WIDE, KvLayout, SideCache


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStream:
    """What one receiver rank reads from one sender rank: some of its heads, in all planes.

    Of what side caches keep, which every rank holds, all comes with each stream.
    """

    sender: int
    """Rank of the sender."""
    first_head: int
    """The model's number, as below."""
    stop_head: int

    @property
    def num_heads(self) -> int:
        return self.stop_head - self.first_head


@dataclass(frozen=True, slots=True)
class TokenRun:
    """Consecutive tokens that are in one block at either side."""

    start: int
    """First token within the sender's block."""
    block: int
    """Number of the receiver's block."""
    target: int
    """Where the first token goes, within the receiver's block."""
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Consecutive bytes of one plane that stay together."""

    start: int
    """First byte within the sender's block, of the heads that travel."""
    block: int
    """Number of the receiver's block."""
    target: int
    """First byte within the receiver's block, with all of its heads."""
    num_bytes: int


def plan_streams(
    senders: Sequence[KvLayout], receivers: Sequence[KvLayout]
) -> tuple[tuple[RankStream, ...], ...]:
    """Streams of each receiver rank, which bring each of its heads exactly once.

    Raises LayoutMismatch, naming everything that differs, if there is no way.
    """
    loads = [0] * len(senders)
    plan = []
    for receiver in receivers:
        for sender in senders:
            _check_pair(sender, receiver)
        streams = tuple(_cover(senders, receiver, loads))
        for stream in streams:
            loads[stream.sender] += stream.num_heads
        plan.append(streams)
    return tuple(plan)


def check_layouts(sender: KvLayout, receiver: KvLayout) -> None:
    """Raise LayoutMismatch, naming everything that differs, if there is no plan for the two."""
    plan_streams((sender,), (receiver,))


def check_features(sender: KvLayout, receiver: KvLayout) -> None:
    """Raise LayoutMismatch if a receiver asks for features that the sender does not have."""
    if receiver.features is not None and not sender.carries_features_of(receiver):
        raise LayoutMismatch(
            f"features cannot be handed over: {sender.features} at the sender, "
            f"{receiver.features} asked for"
        )


def _cover(
    senders: Sequence[KvLayout], receiver: KvLayout, loads: Sequence[int]
) -> Iterator[RankStream]:
    head = receiver.first_kv_head
    while head < receiver.stop_kv_head:
        holders = [
            rank
            for rank, sender in enumerate(senders)
            if sender.first_kv_head <= head < sender.stop_kv_head
        ]
        if not holders:
            raise LayoutMismatch(f"KV cannot be handed over: no sender holds KV head {head}")
        # As few streams as possible; among equals the sender that has the least to send.
        stops = {rank: min(senders[rank].stop_kv_head, receiver.stop_kv_head) for rank in holders}
        best = min(holders, key=lambda rank: (-stops[rank], loads[rank], rank))
        stop = stops[best]
        yield RankStream(sender=best, first_head=head, stop_head=stop)
        head = stop


def _check_pair(sender: KvLayout, receiver: KvLayout) -> None:
    must_agree = ("model_fingerprint", "num_layers", "num_vectors", "head_dim")
    differences = [
        f"{name} is {_show(getattr(sender, name))} at the sender, "
        f"{_show(getattr(receiver, name))} at the receiver"
        for name in must_agree
        if getattr(sender, name) != getattr(receiver, name)
    ]
    if _side_caches(sender) != _side_caches(receiver):
        differences.append(
            f"side caches are {_names(sender)} at the sender, {_names(receiver)} at the receiver, "
            "or of other sizes"
        )
    small, large = sorted((sender.block_size, receiver.block_size))
    if large % small:
        differences.append(
            f"block_size is {sender.block_size} at the sender, {receiver.block_size} at the "
            "receiver, and neither divides the other"
        )
    differences += _int4_apart(sender, receiver)
    if differences:
        raise LayoutMismatch("KV cannot be handed over: " + "; ".join(differences))


def _int4_apart(sender: KvLayout, receiver: KvLayout) -> Iterator[str]:
    """A block of int4 is one whole with what was read beside it: not regrouped, not converted."""
    if not (sender.is_int4 or receiver.is_int4):
        return
    for name in ("dtype", "block_size"):
        ours, theirs = getattr(sender, name), getattr(receiver, name)
        if ours != theirs:
            yield f"{name} is {ours} at the sender, {theirs} at the receiver, and one is sealed"


def _side_caches(layout: KvLayout) -> list[SideCache]:
    """Side caches but for their dtypes, which may differ."""
    return [replace(side, dtype=WIDE[0]) for side in layout.side_caches]


def _names(layout: KvLayout) -> str:
    return ", ".join(side.name for side in layout.side_caches) or "none"


def _show(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


@dataclass(frozen=True)
class BlockPlacement:
    """Where the blocks of one stream go.

    `arriving` is the sender's layout with the heads that travel and no others, so it describes the
    bytes of a block as they arrive. Bytes are told of one plane: of several, ask its `planes`.
    """

    arriving: KvLayout
    receiver: KvLayout

    @cached_property
    def planes(self) -> tuple[BlockPlacement, ...]:
        pairs = zip(self.arriving.planes, self.receiver.planes, strict=True)
        return tuple(BlockPlacement(arriving, receiver) for arriving, receiver in pairs)

    @cached_property
    def runs(self) -> tuple[int, ...]:
        """Run number of each plane: equal for consecutive planes that are placed alike."""
        changes = (ours != before for before, ours in pairwise(self.planes))
        return tuple(accumulate(changes, initial=0))

    @cached_property
    def placed(self) -> KvLayout:
        """`arriving` once its items have the receiver's dtype."""
        return replace(self.arriving, dtype=self.receiver.dtype)

    @cached_property
    def wanted(self) -> KvLayout:
        """The receiver's layout with the heads that travel and no others."""
        first, num_heads = self.arriving.first_kv_head, self.arriving.num_kv_heads
        return replace(self.receiver, first_kv_head=first, num_kv_heads=num_heads)

    @property
    def is_converting(self) -> bool:
        return self.arriving.dtype != self.receiver.dtype

    @property
    def is_direct(self) -> bool:
        """Whether a block goes, as it is, to the block of the same number."""
        return not self.is_converting and self.arriving.block_size == self.receiver.block_size

    @cached_property
    def offset(self) -> int:
        """The byte of the first head that travels, within the receiver's block."""
        num_before = self.arriving.first_kv_head - self.receiver.first_kv_head
        return num_before * self.receiver.unit_bytes

    def blocks(self, tokens: range) -> range:
        """The sender's blocks that hold any of `tokens`."""
        size = self.arriving.block_size
        return range(tokens.start // size, -(-tokens.stop // size))

    def spans(self, block: int, tokens: range) -> Iterator[TokenRun]:
        """Where those of `tokens` go that are in the sender's `block`."""
        sent, kept = self.arriving.block_size, self.receiver.block_size
        at, stop = max(block * sent, tokens.start), min((block + 1) * sent, tokens.stop)
        while at < stop:
            target, offset = divmod(at, kept)
            num_tokens = min(stop - at, kept - offset)
            yield TokenRun(at - block * sent, target, offset, num_tokens)
            at += num_tokens

    def copies(self, block: int, tokens: range) -> Iterator[Copy]:
        """`spans` in bytes, for items that have the receiver's dtype by now (`placed`).

        Where `is_direct` whole units are copied, whichever of their tokens are wanted.
        """
        if self.is_direct:
            if any(self.spans(block, tokens)):
                yield Copy(0, block, self.offset, self.placed.layer_block_bytes)
            return
        for span in self.spans(block, tokens):
            for head in range(self.placed.num_kv_heads):
                yield from self._copies_of_unit(span, head)

    def _copies_of_unit(self, span: TokenRun, head: int) -> Iterator[Copy]:
        sent, kept = self.placed, self.receiver
        start, target = head * sent.unit_bytes, self.offset + head * kept.unit_bytes
        parts = [(0, 0, sent.token_bytes)]
        if sent.has_scales:
            parts.append((sent.items_bytes, kept.items_bytes, SCALE_BYTES))
        for from_, to, size in parts:
            for vector in range(sent.num_vectors):
                yield Copy(
                    start + from_ + (vector * sent.block_size + span.start) * size,
                    span.block,
                    target + to + (vector * kept.block_size + span.target) * size,
                    span.num_tokens * size,
                )


@lru_cache(maxsize=256)
def placement(sender: KvLayout, stream: RankStream, receiver: KvLayout) -> BlockPlacement:
    """Features travel where both sides have the same; else neither layout names them."""
    if not sender.carries_features_of(receiver):
        sender, receiver = replace(sender, features=None), replace(receiver, features=None)
    arriving = replace(sender, first_kv_head=stream.first_head, num_kv_heads=stream.num_heads)
    return BlockPlacement(arriving, receiver)
