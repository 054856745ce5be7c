"""A cached prefix fetched from another replica before a prompt is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from baton.core.kv_pool import Holder, HolderKind
from baton.platform.simulator.fleet.engine import SimulatedEngine
from baton.platform.simulator.fleet.event_queue import EventQueue
from baton.platform.simulator.fleet.setup import Links

SALT = b""


class Puller:
    """KV pulls of one replica: what it receives comes one after the other."""

    def __init__(self, engine: SimulatedEngine, event_queue: EventQueue, links: Links) -> None:
        self._engine = engine
        self._event_queue = event_queue
        self._links = links
        self._numbers = count()
        self._free_s = 0.0

    def arrives_s(self, num_tokens: int, since_s: float) -> float:
        """Time at which KV of `num_tokens` is here that may travel from `since_s` on."""
        num_bytes = num_tokens * self._engine.device.token_bytes
        self._free_s = max(self._free_s, since_s) + num_bytes / self._links.bytes_per_s
        return max(self._free_s, self._event_queue.now) + self._links.latency_s

    def pull(
        self, source: SimulatedEngine, tokens: Sequence[int], then: Callable[[int], None]
    ) -> None:
        """`then` is called between two steps with the number of tokens that were added."""
        tokens = tokens[:-1]  # a pool always leaves the last one to be computed
        lease = Holder(HolderKind.LEASE, f"pull-{next(self._numbers)}")

        def offered() -> None:
            num_offered = source.pool.num_cached(tokens, SALT)
            self._event_queue.after(
                self._links.latency_s, lambda: self._engine.call(lambda: reserve(num_offered))
            )

        def reserve(num_offered: int) -> None:
            pool = self._engine.pool
            num_held = pool.num_cached(tokens[:num_offered], SALT)
            wanted = tokens[:num_offered]
            if num_offered <= num_held or pool.reserve(lease, wanted, SALT) is None:
                then(0)
                return
            num_new = num_offered - num_held
            arrived_s = self.arrives_s(num_new, self._event_queue.now)
            self._event_queue.at(
                arrived_s, lambda: self._engine.call(lambda: arrived(num_offered, num_new))
            )

        def arrived(num_offered: int, num_new: int) -> None:
            self._engine.pool.commit(lease, tokens, num_offered, SALT)
            self._engine.pool.release(lease)
            then(num_new)

        self._event_queue.after(self._links.latency_s, lambda: source.call(offered))
