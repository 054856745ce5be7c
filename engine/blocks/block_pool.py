"""The KV blocks of one engine: which holder references which block, and which may be used next.

    free --reserve, grow--> referenced --release, shrink--> free  if it has no name
      ^                      |   ^  ^-----release--> cached       if it has one (see `commit`)
      |                      |   |                     |
      |                      |   +------ reserve ------+          its prefix is asked for again
      +----------------------+----- evicted, least recently used first

A block is written only while it has one reference and no name. From the moment it is taken until it
is free again it counts for one tenant (`baton.engine.blocks.kv_accounts`). The pool belongs to the
engine's thread.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from baton.core.clock import Clock, monotonic
from baton.core.kv_layout import KvLayout
from baton.core.kv_pool import Census, Holder, HolderKind, Holdings, NameFollower
from baton.engine.blocks.block_bytes import BlockBytes, Source, Targets, are_finite
from baton.engine.blocks.block_namer import BlockNamer
from baton.engine.blocks.block_supply import BlockSupply, Pinned
from baton.engine.blocks.kv_accounts import KvAccounts
from baton.engine.blocks.kv_event_log import KvEventLog
from baton.engine.blocks.lacked_names import LackedNames
from baton.engine.blocks.prefix_cache import Match, PrefixCache


@dataclass(slots=True)
class _Table:
    """The blocks that one holder references, in token order."""

    tenant: str = ""
    """The tenant that blocks added later will count for."""
    blocks: list[int] = field(default_factory=list)
    names: list[bytes] = field(default_factory=list)
    """The names of the first blocks: those matched or committed so far."""
    is_nameable: bool = True
    """Whether its blocks may get names. False after a reset of the cache: KV computed before must
    not be found after it."""
    invalid_names: frozenset[bytes] = frozenset()
    """Names whose KV turned out wrong while these blocks were being filled by a handoff. The blocks
    may be copies of it, so they must not get these names."""


class BlockPool:
    """Implements `baton.core.kv_pool.KvPool`; the scheduler uses `grow` and `commit` as well."""

    def __init__(
        self,
        cache: BlockBytes,
        *,
        prefix_caching: bool = True,
        pinned_fraction: float = 0.25,
        kv_shares: Mapping[str, float] | None = None,
        clock: Clock = monotonic,
    ) -> None:
        """`pinned_fraction`: most of the pool that may be pinned. `kv_shares`: by tenant, the share
        of the pool that is reserved for it and that it may hold at most."""
        self._bytes = cache
        self._block_size = cache.layout.block_size
        self._namer = BlockNamer(cache.layout)
        self.is_prefix_caching = prefix_caching
        self._ref_counts = array("i", bytes(4 * cache.num_blocks))
        self._num_idled = 0
        """How often a block lost its last reference."""
        self._lacked = LackedNames()
        self._tables: dict[Holder, _Table] = {}
        self._follower: NameFollower | None = None
        self.prefixes = PrefixCache()
        """The named blocks. Read-only for others."""
        self.accounts = KvAccounts(cache.num_blocks, kv_shares or {})
        """The blocks held, by tenant. Read-only for others."""
        self.supply = BlockSupply(
            self.prefixes,
            self.accounts,
            cache.num_blocks,
            pinned_fraction=pinned_fraction,
            clock=clock,
        )

    @property
    def layout(self) -> KvLayout:
        return self._bytes.layout

    @property
    def num_blocks(self) -> int:
        return self._bytes.num_blocks

    @property
    def num_available(self) -> int:
        """Blocks without a reference: free ones and cached ones, pinned or not."""
        return self.supply.num_available

    @property
    def num_in_use(self) -> int:
        """Blocks with at least one reference."""
        return self.num_blocks - self.num_available

    @property
    def num_releases(self) -> int:
        """A counter of events after which a refused reservation may succeed: a block lost its last
        reference, a pin ended, or a name that a refused reservation lacked can be found. While it
        does not change, a refused reservation would be refused again."""
        return self._num_idled + self.supply.num_unpinned + self._lacked.num_found

    def record_in(self, log: KvEventLog) -> None:
        """Record in `log`, from now on, which names are stored and evicted."""
        self.prefixes.log = log

    def follow(self, follower: NameFollower) -> None:
        """See `KvPool.follow`."""
        self._follower = follower

    def table(self, holder: Holder) -> Sequence[int]:
        """The blocks of `holder` in token order, empty if it has none. A live view: copy it to keep
        it."""
        table = self._tables.get(holder)
        return table.blocks if table is not None else ()

    def tenants(self, holder: Holder) -> frozenset[str]:
        """See `KvPool.tenants`."""
        return frozenset(map(self.accounts.tenant_of, self.table(holder)))

    def reserve(
        self,
        holder: Holder,
        tokens: Sequence[int],
        salt: bytes,
        *,
        tenant: str = "",
        is_matching: bool = True,
    ) -> int | None:
        """See `KvPool.reserve`. Raises ValueError if `holder` has blocks, or for no tokens.

        Without `is_matching` the prefix cache is not used, and all blocks are fresh.
        """
        if holder in self._tables:
            raise ValueError(f"{holder} holds blocks already")
        if not tokens:
            raise ValueError(f"{holder} reserves blocks for no tokens")
        if not self.num_available:
            return None
        self.supply.expire()
        shared, names, unknown = self._match(tokens[:-1] if is_matching else (), salt)
        num_fresh = self.layout.num_blocks_for(len(tokens)) - len(shared)
        reviving = Counter(self.prefixes.evictable_owners(shared))
        if not self.supply.can_take(num_fresh, tenant, reviving):
            self._lacked.note(unknown, self.num_releases)
            return None
        for block in shared:
            self._add_reference(block)
        blocks = shared + [self._take(tenant) for _ in range(num_fresh)]
        self._tables[holder] = _Table(tenant, blocks, names)
        self.supply.use(names)
        return len(shared) * self.layout.block_size

    def num_cached(self, tokens: Sequence[int], salt: bytes) -> int:
        """See `KvPool.num_cached`."""
        return len(self._match(tokens, salt).blocks) * self.layout.block_size

    def hold_cached(self, holder: Holder, tokens: Sequence[int], salt: bytes) -> int:
        """See `KvPool.hold_cached`. Raises ValueError if `holder` has blocks."""
        if holder in self._tables:
            raise ValueError(f"{holder} holds blocks already")
        blocks, names, _ = self._match(tokens, salt)
        for block in blocks:
            self._add_reference(block)
        if blocks:
            self._tables[holder] = _Table(self.accounts.tenant_of(blocks[0]), blocks, names)
            self.supply.use(names)
        return len(blocks) * self.layout.block_size

    def hold_named(self, holder: Holder, name: bytes) -> bool:
        """See `KvPool.hold_named`. Raises ValueError if `holder` has blocks."""
        if holder in self._tables:
            raise ValueError(f"{holder} holds blocks already")
        blocks = self.prefixes.match((name,)).blocks
        for block in blocks:
            self._add_reference(block)
            # The name is not put into the table, whose names are those of a prefix.
            self._tables[holder] = _Table(self.accounts.tenant_of(block), blocks, is_nameable=False)
        return bool(blocks)

    def grow(self, holder: Holder, num_tokens: int) -> bool:
        """Add blocks to the table of `holder` until it covers `num_tokens` in all. Returns False,
        and changes nothing, if there are not enough blocks."""
        table = self._tables.get(holder)
        if table is not None and num_tokens <= len(table.blocks) * self._block_size:
            return True
        table = table or _Table()
        num_fresh = self.layout.num_blocks_for(num_tokens) - len(table.blocks)
        if num_fresh <= 0:
            return True
        self.supply.expire()
        if not self.supply.can_take(num_fresh, table.tenant):
            return False
        self._tables[holder] = table
        table.blocks.extend(self._take(table.tenant) for _ in range(num_fresh))
        return True

    def pin(self, holder: Holder, num_tokens: int, ttl_s: float) -> Pinned:
        """Pin the named blocks among the first `num_tokens` of `holder` in the cache.

        They stay for `ttl_s` seconds, renewed by each prompt that begins with all of them.
        """
        table = self._tables.get(holder)
        if table is None or not table.is_nameable:
            return Pinned(0, 0)
        names = table.names[: num_tokens // self.layout.block_size]
        return self.supply.pin(self.prefixes.match(names).names, table.tenant, ttl_s)

    def commit(self, holder: Holder, tokens: Sequence[int], num_computed: int, salt: bytes) -> None:
        """Name the blocks of `holder` that the first `num_computed` of its `tokens` fill, so that
        others can share them.

        Only blocks that are newly full are hashed. Raises ValueError if the holder's blocks do not
        cover so many tokens.
        """
        table = self._tables.get(holder)
        num_full = num_computed // self._block_size
        if table is not None and num_full <= len(table.names):
            return
        if num_full > (len(table.blocks) if table is not None else 0):
            raise ValueError(f"{holder} has too few blocks for {num_computed} computed tokens")
        if table is None or not (self.is_prefix_caching and table.is_nameable):
            return
        for name in self._namer.further_names(table.names, tokens, num_full, salt):
            if name in table.invalid_names:
                table.is_nameable = False
                return
            self.prefixes.add(table.blocks[len(table.names)], name)
            table.names.append(name)
            self._lacked.come(name)
            if self._follower is not None:
                self._follower.named(name)

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
        table = self._tables.setdefault(target, _Table(self._tables[source].tenant))
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
        """See `KvPool.release`. Blocks are dropped from the last to the first, so that the end of a
        prefix is evicted before its beginning."""
        table = self._tables.pop(holder, None)
        if table is None:
            return
        for block in reversed(table.blocks):
            self._drop(block)

    def shrink(self, holder: Holder, num_tokens: int) -> None:
        """Remove the blocks of `holder` that its first `num_tokens` tokens do not need. Raises
        ValueError if one of them has a name."""
        table = self._tables.get(holder)
        if table is None or num_tokens > (len(table.blocks) - 1) * self._block_size:
            return
        num_kept = self.layout.num_blocks_for(num_tokens)
        if num_kept < len(table.names):
            raise ValueError(f"{holder} has named more blocks than {num_tokens} tokens need")
        while len(table.blocks) > num_kept:
            self._drop(table.blocks.pop())

    def forget(self, holder: Holder) -> None:
        """Remove the names of the blocks of `holder`, whose KV is wrong. Neither these blocks nor
        copies of them that are being received can be found afterwards."""
        table = self._tables.get(holder)
        if table is None:
            return
        table.is_nameable = False
        for other, filled in self._tables.items():
            if other.kind is HolderKind.LEASE:
                filled.invalid_names |= frozenset(table.names)
        for name in table.names:
            if self._follower is not None:
                self._follower.invalidated(name)
        for block in table.blocks:
            self.prefixes.forget(block)

    def wipe(self, holder: Holder) -> None:
        """Zero the blocks that only `holder` references and that have no name, before they are
        released. Kernels never use slots outside a request's context, so this is a second
        safeguard against KV that is known to be wrong."""
        for block in self.table(holder):
            if self._ref_counts[block] == 1 and not self.prefixes.is_named(block):
                for plane in range(self.layout.num_planes):
                    self._bytes.clear_tail(block, plane, 0)

    def view(self, holder: Holder, index: int, plane: int) -> memoryview:
        """See `KvPool.view`. Raises ValueError if the holder has no such block."""
        return self._bytes.view(self._block_at(holder, index), plane)

    def source(self, holder: Holder, start: int, stop: int, planes: range) -> Source:
        """See `KvPool.source`."""
        return Source(self._bytes, tuple(self.table(holder)[start:stop]), planes)

    def write(self, holder: Holder, index: int, plane: int, data: memoryview) -> None:
        """See `KvPool.write`. Raises ValueError if the block has a name or another holder."""
        block = self._block_at(holder, index)
        self._check_alone(holder, index, block)
        self._bytes.write(block, plane, data)

    def clear_tail(self, holder: Holder, num_tokens: int, plane: int) -> None:
        """See `KvPool.clear_tail`. A block with a name is full and is not changed."""
        index, num_used = divmod(num_tokens, self.layout.block_size)
        if num_used and not self.prefixes.is_named(block := self._block_at(holder, index)):
            self._bytes.clear_tail(block, plane, num_used)

    def clear(self, holder: Holder, start: int, plane: int) -> None:
        """See `KvPool.clear`. Raises ValueError if one of the blocks has a name or another
        holder."""
        blocks = self.table(holder)[start:]
        for index, block in enumerate(blocks, start):
            self._check_alone(holder, index, block)
        self._bytes.clear(blocks, plane)

    def are_finite(self, holder: Holder, start: int, stop: int) -> bool:
        """See `KvPool.are_finite`."""
        return are_finite(self._bytes, self.table(holder)[start:stop])

    @property
    def head_runs(self) -> Sequence[range]:
        """See `KvPool.head_runs`."""
        return self._bytes.head_runs

    def targets(self, holder: Holder, start: int) -> Targets:
        """See `KvPool.targets`. Raises ValueError if one of the blocks has a name or another
        holder."""
        blocks = tuple(self.table(holder))
        for index in range(start, len(blocks)):
            self._check_alone(holder, index, blocks[index])
        return Targets(self._bytes, blocks, start)

    def reset_cache(self) -> int:
        """Empty the prefix cache; returns how many blocks had a name. Running requests keep their
        blocks, which will not get names any more."""
        num_blocks = self.prefixes.num_named
        self.supply.clear()
        self._num_idled += 1  # so that waiting requests are tried again
        for table in self._tables.values():
            table.is_nameable = False
        return num_blocks

    def holdings(self) -> Holdings:
        """A copy of all tables, and the numbers of cached and free blocks."""
        return Holdings(
            num_blocks=self.num_blocks,
            tables=self._copied_tables(),
            num_cached=self.prefixes.num_idle,
            num_free=self.supply.num_free,
        )

    def census(self) -> Census:
        """See `KvPool.census`."""
        return Census(
            num_blocks=self.num_blocks,
            ref_counts=self._ref_counts[:],
            tables=self._copied_tables(),
            cached=self.prefixes.idle,
            free=self.supply.free,
        )

    def _copied_tables(self) -> dict[Holder, tuple[int, ...]]:
        return {holder: tuple(table.blocks) for holder, table in self._tables.items()}

    def _match(self, tokens: Sequence[int], salt: bytes) -> Match:
        """The cached blocks of the longest prefix of `tokens` that consists of full blocks."""
        names = self._namer.names(tokens, salt) if self.is_prefix_caching else ()
        return self.prefixes.match(names)

    def _check_alone(self, holder: Holder, index: int, block: int) -> None:
        if self._ref_counts[block] > 1 or self.prefixes.is_named(block):
            raise ValueError(f"block {index} of {holder} is shared and must not be written")

    def _block_at(self, holder: Holder, index: int) -> int:
        blocks = self.table(holder)
        if not 0 <= index < len(blocks):
            raise ValueError(f"{holder} has {len(blocks)} blocks; there is none at {index}")
        return blocks[index]

    def _add_reference(self, block: int) -> None:
        if not self._ref_counts[block]:
            self.prefixes.revive(block)
        self._ref_counts[block] += 1

    def _drop(self, block: int) -> None:
        self._ref_counts[block] -= 1
        if self._ref_counts[block]:
            return
        self._num_idled += 1
        if self.prefixes.is_named(block):
            self.prefixes.retire(block, self.accounts.tenant_of(block))
        else:
            self.supply.give_back(block)

    def _take(self, tenant: str) -> int:
        block = self.supply.take(tenant)
        self._ref_counts[block] = 1
        return block
