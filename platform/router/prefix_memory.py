"""What a gateway remembers of where it placed which prompt: a guess at the replicas' prefix caches.

Block hash -> the replicas that were given, or made, that block. Bounded; the least recently used
prompt is forgotten first, from its end: what is left of it is still a prefix. Replicas evict on
their own, so a hit here is likely, never certain.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from baton.core.ids import Epoch


class PrefixMemory:
    def __init__(self, max_blocks: int = 200_000) -> None:
        self._max_blocks = max_blocks
        self._epochs_by_block: OrderedDict[bytes, set[Epoch]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._epochs_by_block)

    def remember(self, hashes: Sequence[bytes], epochs: Sequence[Epoch]) -> None:
        if not epochs:
            return
        for block in reversed(hashes):
            self._epochs_by_block.setdefault(block, set()).update(epochs)
            self._epochs_by_block.move_to_end(block)
        while len(self._epochs_by_block) > self._max_blocks:
            self._epochs_by_block.popitem(last=False)

    def num_cached_blocks(self, hashes: Sequence[bytes]) -> dict[Epoch, int]:
        """By replica: how many leading blocks it probably has. Those with none are left out."""
        counts: dict[Epoch, int] = {}
        holders: set[Epoch] | None = None
        for depth, block in enumerate(hashes, start=1):
            known = self._epochs_by_block.get(block)
            if known is None:
                break
            holders = set(known) if holders is None else holders & known
            if not holders:
                break
            for epoch in holders:
                counts[epoch] = depth
        return counts

    def forget(self, epoch: Epoch) -> None:
        """A replica is gone, and its cache with it."""
        for block in [b for b, epochs in self._epochs_by_block.items() if epoch in epochs]:
            epochs = self._epochs_by_block[block]
            epochs.discard(epoch)
            if not epochs:
                del self._epochs_by_block[block]
