"""The blocks of one prompt in the tiers, as a source of KV like a peer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from baton.core.block_hash import root_hash
from baton.core.ids import TransferId
from baton.kernels.names.block_names import block_names
from baton.kv_transfer.pulling.prefix_fetch import PrefixOffer
from baton.kv_transfer.tiers.stack import TierPart, TierStack
from baton.kv_transfer.tiers.transport import ADDRESS, TierTransport
from baton.kv_transfer.tiers.worth import Rate, blocks_worth_taking


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPolicy:
    """What decides whether reading beats computing."""

    min_tokens: int
    read_bytes: Mapping[str, Rate]
    """Rate of reading bytes, by tier."""
    computed_tokens: Rate


class TierSource:
    """A `PrefixSource` for one attempt to bring one prompt in."""

    name = "the tiers"

    def __init__(self, stack: TierStack, transport: TierTransport, policy: ReadPolicy) -> None:
        self.names: Sequence[bytes] = ()
        """Names of the blocks that are to be brought in, once something was offered."""
        self.stretches: tuple[TierPart, ...] = ()
        """Tiers that hold those blocks, stretch by stretch."""
        self._stack = stack
        self._transport = transport
        self._read_policy = policy

    @property
    def tiers(self) -> tuple[str, ...]:
        """Names of the tiers that the blocks come from, the slowest last."""
        held = {stretch.tier for stretch in self.stretches}
        return tuple(name for name in self._stack.tier_names if name in held)

    @property
    def num_bytes(self) -> int:
        return len(self.names) * self._stack.format.layout.block_bytes

    @asynccontextmanager
    async def offer(
        self, transfer_id: TransferId, tokens: Sequence[int], salt: bytes, num_held: int
    ) -> AsyncIterator[PrefixOffer | None]:
        """See `PrefixSource.offer`."""
        layout = self._stack.format.layout
        if len(tokens) - num_held < max(self._read_policy.min_tokens, layout.block_size):
            yield None
            return
        root = root_hash(layout.model_fingerprint, salt)
        names = list(block_names(root, tokens, layout.block_size))
        first = num_held // layout.block_size
        num_blocks = self._choose(await self._stack.find(names[first:]))
        if not num_blocks or num_blocks * layout.block_size < self._read_policy.min_tokens:
            yield None
            return
        stop = first + num_blocks
        self.names = names[first:stop]
        with self._transport.expecting(transfer_id, names[:stop]):
            yield PrefixOffer(
                sender_epoch=self._stack.epoch,
                layout=layout,
                num_tokens=stop * layout.block_size,
                address=ADDRESS,
            )

    def _choose(self, stretches: tuple[TierPart, ...]) -> int:
        layout = self._stack.format.layout
        num_blocks = blocks_worth_taking(
            stretches,
            block_bytes=layout.block_bytes,
            block_tokens=layout.block_size,
            bytes_per_s={name: rate.per_s for name, rate in self._read_policy.read_bytes.items()},
            tokens_per_s=self._read_policy.computed_tokens.per_s,
        )
        self.stretches = _first(stretches, num_blocks)
        return num_blocks


def _first(stretches: Sequence[TierPart], num_blocks: int) -> tuple[TierPart, ...]:
    """The stretches that hold the first `num_blocks` blocks; a choice ends where a stretch does."""
    taken: list[TierPart] = []
    for stretch in stretches:
        if sum(stretch.num_blocks for stretch in taken) >= num_blocks:
            break
        taken.append(stretch)
    return tuple(taken)
