"""How much of each prompt in line each replica has: looked up anew only where its cache changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from baton.core.ids import Epoch
from baton.core.kv_layout import KvLayout
from baton.router.cache.kv_index import KvIndex
from baton.router.cache.prompt_names import PromptNames, way_to_name


class Matches:
    """A prompt remembers what was found: its names are asked of one index only."""

    def __init__(self, index: KvIndex, layout_of: Callable[[Epoch], KvLayout | None]) -> None:
        """`layout_of`: None for a replica that is not known."""
        self._index = index
        self._layout_of = layout_of

    def num_tokens(self, prompts: Sequence[PromptNames], epoch: Epoch) -> list[int]:
        """How many leading tokens of each prompt a replica has."""
        version, layout = self._index.version(epoch), self._layout_of(epoch)
        if version is None or layout is None:
            return [0] * len(prompts)
        nothing = None, 0
        seen = [prompt.matched.get(epoch, nothing) for prompt in prompts]
        unseen = [prompt for prompt, one in zip(prompts, seen, strict=True) if one[0] != version]
        if unseen:
            way = way_to_name(layout)
            names = [prompt.named(way) for prompt in unseen]
            every = self._index.num_cached_blocks_of(epoch, names)
            for prompt, num_blocks in zip(unseen, every, strict=True):
                prompt.matched[epoch] = version, num_blocks * layout.block_size
            seen = [prompt.matched[epoch] for prompt in prompts]
        return [num_tokens for _, num_tokens in seen]
