"""How much of each waiting prompt each replica has; looked up anew only where its cache changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from baton.core.ids import Epoch
from baton.core.kv_layout import KvLayout
from baton.router.cache.kv_index import CachedBlocks, CacheVersion, KvIndex
from baton.router.cache.prompt_names import PromptNames, WayToName, way_to_name

NOTHING: tuple[CacheVersion | None, int] = (None, 0)


class Lookup(NamedTuple):
    """The arguments with which compiled code looks prompts up in one replica's cache."""

    way: WayToName
    """By which their blocks must be named."""
    blocks: CachedBlocks

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.way[1]


class Matches:
    """A prompt remembers what was found: its names are asked of one index only."""

    def __init__(self, index: KvIndex, layout_of: Callable[[Epoch], KvLayout | None]) -> None:
        """`layout_of`: None for a replica that is not known."""
        self._index = index
        self._layout_of = layout_of

    def lookup(self, epoch: Epoch) -> Lookup | None:
        """None, where only `num_tokens` knows."""
        blocks, layout = self._index.blocks_of(epoch), self._layout_of(epoch)
        return None if blocks is None or layout is None else Lookup(way_to_name(layout), blocks)

    def num_tokens(self, prompts: Sequence[PromptNames], epoch: Epoch) -> list[int]:
        """How many leading tokens of each prompt a replica has."""
        version, layout = self._index.version(epoch), self._layout_of(epoch)
        if version is None or layout is None:
            return [0] * len(prompts)
        found, unseen = [], []
        for place, prompt in enumerate(prompts):
            then, num_tokens = prompt.matched.get(epoch, NOTHING)
            if then != version:
                unseen.append(place)
            found.append(num_tokens)
        if unseen:
            way, block_size = way_to_name(layout), layout.block_size
            names = [prompts[place].named(way) for place in unseen]
            every = self._index.num_cached_blocks_of(epoch, names)
            for place, num_blocks in zip(unseen, every, strict=True):
                found[place] = num_tokens = num_blocks * block_size
                prompts[place].matched[epoch] = version, num_tokens
        return found
