"""What the pool says about the names that come into and leave its cache."""

from __future__ import annotations

from tests.engine.blocks.test_block_pool import BLOCK_SIZE, SALT, hold, make_pool, request

from baton.core.block_hash import block_hashes, root_hash
from baton.core.kv_events import KvChange, KvEvent
from baton.engine.blocks.block_pool import BlockPool
from baton.engine.blocks.kv_event_log import KvEventLog


class Follower:
    """Hears the news of one pool."""

    def __init__(self, pool: BlockPool) -> None:
        self._log = KvEventLog()
        self._sequence = 1
        pool.record_in(self._log)

    def news(self) -> list[KvEvent]:
        """What happened since the last call."""
        self._log.flush()
        events = self._log.read(self._sequence)
        assert events is not None
        self._sequence = events.next_sequence
        return list(events.events)


def names(tokens: list[int]) -> list[bytes]:
    return list(block_hashes(root_hash(b"model", SALT), tokens, BLOCK_SIZE))


def stored(*blocks: bytes) -> KvEvent:
    return KvEvent(KvChange.STORED, b"".join(blocks))


def evicted(*blocks: bytes) -> KvEvent:
    return KvEvent(KvChange.EVICTED, b"".join(blocks))


def test_blocks_are_stored_once_they_are_full_and_computed() -> None:
    pool = make_pool()
    follower, tokens = Follower(pool), list(range(12))
    pool.reserve(request("first"), tokens, SALT)
    assert follower.news() == []

    pool.commit(request("first"), tokens, 7, SALT)
    assert follower.news() == [stored(*names(tokens)[:1])]

    pool.commit(request("first"), tokens, 12, SALT)
    assert follower.news() == [stored(*names(tokens)[1:])]
    assert list(pool.prefixes.names()) == names(tokens)


def test_a_hit_a_release_and_a_second_block_of_the_same_name_are_no_news() -> None:
    pool = make_pool()
    follower, tokens = Follower(pool), list(range(8))
    for name in ("first", "twin"):
        pool.reserve(request(name), tokens, SALT)
    for name in ("first", "twin"):
        pool.commit(request(name), tokens, 8, SALT)
    assert follower.news() == [stored(*names(tokens))]

    pool.release(request("twin"))
    hold(pool, "hit", [*tokens, 99])
    pool.release(request("first"))

    assert follower.news() == []


def test_the_name_goes_when_its_block_is_evicted_the_deepest_first() -> None:
    pool = make_pool(num_blocks=3)
    follower, tokens = Follower(pool), list(range(12))
    pool.release(hold(pool, "first", tokens))
    follower.news()

    pool.reserve(request("other"), list(range(100, 108)), SALT)

    assert follower.news() == [evicted(names(tokens)[2], names(tokens)[1])]
    assert list(pool.prefixes.names()) == names(tokens)[:1]


def test_what_was_computed_wrongly_counts_as_evicted() -> None:
    pool = make_pool()
    follower, tokens = Follower(pool), list(range(8))
    holder = hold(pool, "wrong", tokens)
    follower.news()

    pool.forget(holder)
    pool.release(holder)

    assert follower.news() == [evicted(*names(tokens))]


def test_a_reset_clears_everything_even_what_is_still_held() -> None:
    pool = make_pool()
    follower = Follower(pool)
    hold(pool, "held", list(range(8)))

    pool.reset_cache()

    assert follower.news() == [KvEvent(KvChange.CLEARED)]
    assert list(pool.prefixes.names()) == []


def test_without_prefix_caching_there_is_nothing_to_say() -> None:
    pool = make_pool(prefix_caching=False)
    follower = Follower(pool)

    pool.release(hold(pool, "first", list(range(8))))

    assert follower.news() == []
