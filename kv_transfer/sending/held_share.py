"""The share of P's pool that computed prompts may hold until D has fetched them.

    take (its turn) --> computed --hold--> D has it, or it is given up --let_go-->
         not counted                counted

A prompt that is being computed does not count: D fetches it meanwhile, layer by layer. So prompts
hold no more than the share plus what was under way when it was used up. One prompt may be held in
any case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

from baton.core.errors import Overloaded
from baton.core.ids import TransferId


class _Taken(NamedTuple):
    num_blocks: int
    tenant: str
    """The tenant that they count for."""


class HeldShare:
    """`num_blocks`, `num_left` and `check` are for any thread, the rest for the pool's."""

    def __init__(self, max_blocks: int) -> None:
        self.max_blocks = max_blocks
        self.num_blocks = 0
        """Taken from the pool for prompts that are held; shared prefixes do not count."""
        self._taken: dict[TransferId, _Taken] = {}
        """Blocks taken by each prompt that is not held as yet."""
        self._held: dict[TransferId, _Taken] = {}
        self._num_held_by_tenant: Counter[str] = Counter()

    @property
    def num_left(self) -> int | None:
        """Blocks of a prompt that would not be too much; None: however many they are."""
        held = self.num_blocks
        return max(0, self.max_blocks - held) if held else None

    @property
    def tenants(self) -> Collection[str]:
        """Tenants whose blocks are held, and come back as decode replicas fetch them. A live
        view."""
        return self._num_held_by_tenant.keys()

    def check(self, num_blocks: int) -> None:
        """Raise Overloaded if a prompt of so many blocks would be too much."""
        held, limit = self.num_blocks, self.max_blocks
        if held and held + num_blocks > limit:
            raise Overloaded(
                f"decode replicas have yet to fetch what this prefill replica has computed: "
                f"{held} blocks held + {num_blocks} asked for > {limit} that it may hold "
                f"(transfer.max_held_fraction)"
            )

    def take(self, transfer_id: TransferId, num_blocks: int, tenant: str = "") -> None:
        """Its turn has come. Only the first time counts: a preempted prompt resumes in any case.

        Raises Overloaded; then nothing is changed.
        """
        if transfer_id not in self._taken and transfer_id not in self._held:
            self.check(num_blocks)
            self._taken[transfer_id] = _Taken(num_blocks, tenant)

    def hold(self, transfer_id: TransferId) -> None:
        """Nothing more of it is computed. Safe to repeat."""
        taken = self._taken.pop(transfer_id, None)
        if taken is not None and taken.num_blocks:
            self._held[transfer_id] = taken
            self.num_blocks += taken.num_blocks
            self._num_held_by_tenant[taken.tenant] += taken.num_blocks

    def let_go(self, transfer_id: TransferId) -> None:
        """Its blocks are the pool's again."""
        self._taken.pop(transfer_id, None)
        held = self._held.pop(transfer_id, None)
        if held is None:
            return
        self.num_blocks -= held.num_blocks
        self._num_held_by_tenant[held.tenant] -= held.num_blocks
        if not self._num_held_by_tenant[held.tenant]:
            del self._num_held_by_tenant[held.tenant]
