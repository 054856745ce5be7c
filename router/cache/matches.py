"""How much of each prompt in line each replica has: looked up anew only where its cache changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

from baton.core.ids import Epoch
from baton.core.kv_layout import KvLayout
from baton.router.cache.kv_index import CacheVersion, KvIndex
from baton.router.cache.prompt_names import PromptNames


class Matches:
    def __init__(self, index: KvIndex, layout_of: Callable[[Epoch], KvLayout | None]) -> None:
        """`layout_of`: None for a replica that is not known."""
        self._index = index
        self._layout_of = layout_of
        self._known: WeakKeyDictionary[PromptNames, dict[Epoch, tuple[CacheVersion, int]]] = (
            WeakKeyDictionary()
        )

    def num_tokens(self, prompts: Sequence[PromptNames], epoch: Epoch) -> list[int]:
        """How many leading tokens of each prompt a replica has."""
        version, layout = self._index.version(epoch), self._layout_of(epoch)
        if version is None or layout is None:
            return [0] * len(prompts)
        known_by_prompt, found = self._known, []
        for prompt in prompts:
            known = known_by_prompt.get(prompt)
            if known is None:
                known = known_by_prompt[prompt] = {}
            seen = known.get(epoch)
            if seen is None or seen[0] != version:
                num_blocks = self._index.num_cached_blocks_of(epoch, prompt.under(layout))
                seen = known[epoch] = version, num_blocks * layout.block_size
            found.append(seen[1])
        return found
