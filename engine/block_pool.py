"""The blocks of KV of one engine: who references which, and which may be used next.

    free --reserve, grow--> referenced --release--> free          if it has no name
      ^                      |   ^  ^-----release--> cached       if it has one (see `commit`)
      |                      |   |                     |
      |                      |   +------ reserve ------+          its prefix is asked for again
      +----------------------+----- evicted, least recently used first

A block is written only while it has one reference and no name. Single-threaded: it belongs to
the engine's thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from baton.core.block_hash import block_hashes, extend_hash, root_hash
from baton.core.kv_layout import KvLayout
from baton.core.kv_pool import Census, Holder
from baton.engine.kv_event_log import KvEventLog
from baton.engine.prefix_cache import PrefixCache


class BlockBytes(Protocol):
    """The memory behind the blocks; `baton.engine.kv_cache.KvCache` is the real one."""

    @property
    def layout(self) -> KvLayout: ...

    @property
    def num_blocks(self) -> int: ...

    def view(self, block: int, layer: int) -> memoryview: ...

    def write(self, block: int, layer: int, data: memoryview) -> None: ...


@dataclass(slots=True)
class _Table:
    """What one holder references, in token order."""

    blocks: list[int] = field(default_factory=list)
    names: list[bytes] = field(default_factory=list)
    """Of the first blocks: those matched or committed so far."""
    is_nameable: bool = True
    """False once the cache was reset: what was computed before must not be found after."""


class BlockPool:
    """Implements `baton.core.kv_pool.KvPool`; the scheduler uses `grow` and `commit` as well."""

    def __init__(self, cache: BlockBytes, *, prefix_caching: bool = True) -> None:
        self.num_releases = 0
        """How many references-to-nothing there were: while it stands still, no block came free."""
        self._bytes = cache
        self._is_matching = prefix_caching
        self._ref_counts = [0] * cache.num_blocks
        self._free = list(range(cache.num_blocks - 1, -1, -1))  # a stack: reuse what is warm
        self._tables: dict[Holder, _Table] = {}
        self._prefixes = PrefixCache()

    @property
    def layout(self) -> KvLayout:
        return self._bytes.layout

    @property
    def num_blocks(self) -> int:
        return self._bytes.num_blocks

    @property
    def num_available(self) -> int:
        """Blocks that can be had at once: free ones and unreferenced cached ones."""
        return len(self._free) + self._prefixes.num_idle

    @property
    def num_in_use(self) -> int:
        """Blocks with at least one reference."""
        return self.num_blocks - self.num_available

    def record_in(self, log: KvEventLog) -> None:
        """From now on `log` hears which names come and go."""
        self._prefixes.log = log

    def names(self) -> Iterable[bytes]:
        """Of the blocks that a prompt could find here now. Live: read it before the next change."""
        return self._prefixes.names()

    def table(self, holder: Holder) -> Sequence[int]:
        """The blocks of `holder` in token order, empty if it has none. Live: copy it to keep it."""
        table = self._tables.get(holder)
        return table.blocks if table is not None else ()

    def reserve(
        self, holder: Holder, tokens: Sequence[int], salt: bytes, *, is_matching: bool = True
    ) -> int | None:
        """See `KvPool.reserve`. Raises ValueError if `holder` has blocks, or for no tokens.

        Without `is_matching` all blocks are fresh, whatever is cached.
        """
        if holder in self._tables:
            raise ValueError(f"{holder} holds blocks already")
        if not tokens:
            raise ValueError(f"{holder} reserves blocks for no tokens")
        if not self.num_available:
            return None
        names: list[bytes] = []
        to_match = self._names_to_match(tokens, salt, names) if is_matching else ()
        shared = self._prefixes.match(to_match)
        num_fresh = self.layout.num_blocks_for(len(tokens)) - len(shared)
        num_revived = sum(map(self._prefixes.is_idle, shared))
        if num_fresh > self.num_available - num_revived:
            return None
        for block in shared:
            self._add_reference(block)
        blocks = shared + [self._take() for _ in range(num_fresh)]
        self._tables[holder] = _Table(blocks, names[: len(shared)])
        return len(shared) * self.layout.block_size

    def grow(self, holder: Holder, num_tokens: int) -> bool:
        """Let the table of `holder` cover `num_tokens` in all; if it cannot, change nothing."""
        num_fresh = self.layout.num_blocks_for(num_tokens) - len(self.table(holder))
        if num_fresh <= 0:
            return True
        if num_fresh > self.num_available:
            return False
        table = self._tables.setdefault(holder, _Table())
        table.blocks.extend(self._take() for _ in range(num_fresh))
        return True

    def commit(self, holder: Holder, tokens: Sequence[int], num_computed: int, salt: bytes) -> None:
        """Name the blocks of `holder` filled by the first `num_computed` of its `tokens`.

        From now on they can be shared. Costs what the newly full blocks cost. Raises ValueError if
        the holder's blocks do not cover so many tokens.
        """
        table = self._tables.get(holder)
        num_full = num_computed // self.layout.block_size
        if num_full > len(self.table(holder)):
            raise ValueError(f"{holder} has too few blocks for {num_computed} computed tokens")
        if table is None or not (self._is_matching and table.is_nameable):
            return
        for index in range(len(table.names), num_full):
            parent = table.names[-1] if index else self._root(salt)
            start = index * self.layout.block_size
            name = extend_hash(parent, tokens[start : start + self.layout.block_size])
            self._prefixes.add(table.blocks[index], name)
            table.names.append(name)

    def share(self, source: Holder, target: Holder, num_blocks: int) -> None:
        """See `KvPool.share`. Raises ValueError if `source` has fewer blocks."""
        blocks = self.table(source)
        if num_blocks > len(blocks):
            raise ValueError(f"{source} has {len(blocks)} blocks, not {num_blocks}, to share")
        if not num_blocks:
            return
        shared = blocks[len(self.table(target)) : num_blocks]
        for block in shared:
            self._add_reference(block)
        table = self._tables.setdefault(target, _Table())
        table.blocks.extend(shared)
        table.is_nameable &= self._tables[source].is_nameable

    def hand_over(self, source: Holder, target: Holder) -> None:
        """See `KvPool.hand_over`. Raises ValueError if `target` has blocks."""
        if target in self._tables:
            raise ValueError(f"{target} holds blocks already; {source} cannot hand over its own")
        table = self._tables.pop(source, None)
        if table is not None:
            self._tables[target] = table

    def release(self, holder: Holder) -> None:
        """See `KvPool.release`. The deepest block of a chain is the first to be evicted later."""
        table = self._tables.pop(holder, None)
        if table is None:
            return
        for block in reversed(table.blocks):
            self._ref_counts[block] -= 1
            if self._ref_counts[block]:
                continue
            self.num_releases += 1
            if self._prefixes.is_named(block):
                self._prefixes.retire(block)
            else:
                self._free.append(block)

    def forget(self, holder: Holder) -> None:
        """What `holder` computed is wrong: nobody may find it, now or later."""
        table = self._tables.get(holder)
        if table is not None:
            table.is_nameable = False
            for block in table.blocks:
                self._prefixes.forget(block)

    def view(self, holder: Holder, index: int, layer: int) -> memoryview:
        """See `KvPool.view`. Raises ValueError if the holder has no such block."""
        return self._bytes.view(self._block_at(holder, index), layer)

    def write(self, holder: Holder, index: int, layer: int, data: memoryview) -> None:
        """See `KvPool.write`. Raises ValueError if the block has a name or another holder."""
        block = self._block_at(holder, index)
        if self._ref_counts[block] > 1 or self._prefixes.is_named(block):
            raise ValueError(f"block {index} of {holder} is shared and must not be written")
        self._bytes.write(block, layer, data)

    def reset_cache(self) -> None:
        """Forget every prefix. Running requests keep their blocks, but nothing will match them."""
        self._free.extend(self._prefixes.clear())
        for table in self._tables.values():
            table.is_nameable = False

    def census(self) -> Census:
        return Census(
            num_blocks=self.num_blocks,
            ref_counts=tuple(self._ref_counts),
            tables={holder: tuple(table.blocks) for holder, table in self._tables.items()},
            cached=self._prefixes.idle,
            free=frozenset(self._free),
        )

    def _root(self, salt: bytes) -> bytes:
        return root_hash(self.layout.model_fingerprint, salt)

    def _names_to_match(
        self, tokens: Sequence[int], salt: bytes, names: list[bytes]
    ) -> Iterator[bytes]:
        """Names of the full blocks before the last token, also collected in `names`."""
        if not self._is_matching:
            return
        for name in block_hashes(self._root(salt), tokens[:-1], self.layout.block_size):
            names.append(name)
            yield name

    def _block_at(self, holder: Holder, index: int) -> int:
        blocks = self.table(holder)
        if not 0 <= index < len(blocks):
            raise ValueError(f"{holder} has {len(blocks)} blocks; there is none at {index}")
        return blocks[index]

    def _add_reference(self, block: int) -> None:
        if not self._ref_counts[block]:
            self._prefixes.revive(block)
        self._ref_counts[block] += 1

    def _take(self) -> int:
        """A block for new contents; the caller made sure there is one."""
        block = self._free.pop() if self._free else self._prefixes.evict()
        self._ref_counts[block] = 1
        return block
