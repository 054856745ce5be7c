"""The pool's rules one by one; `test_block_pool_model.py` tries them in random order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from baton.core.block_hash import block_hashes, root_hash
from baton.core.kv_layout import KvLayout
from baton.core.kv_pool import Holder, HolderKind
from baton.engine.blocks.block_pool import BlockPool

SALT = b"tenant"
BLOCK_SIZE = 4


class FakeBytes:
    """Two layers of blocks in plain bytes."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.layout = KvLayout(
            model_fingerprint=b"model",
            dtype="float16",
            num_layers=2,
            num_kv_heads=1,
            head_dim=2,
            block_size=BLOCK_SIZE,
        )
        self._layers = [
            [bytearray(self.layout.layer_block_bytes) for _ in range(num_blocks)] for _ in range(2)
        ]

    def view(self, block: int, layer: int) -> memoryview:
        return memoryview(self._layers[layer][block]).toreadonly()

    def views(self, blocks: Sequence[int], planes: range) -> tuple[memoryview, ...]:
        return tuple(self.view(block, plane) for plane in planes for block in blocks)

    def write(self, block: int, layer: int, data: memoryview) -> None:
        self._layers[layer][block][:] = data

    def clear(self, blocks: Sequence[int], layer: int) -> None:
        raise AssertionError("nothing is sent from here")

    def clear_tail(self, block: int, layer: int, num_used: int) -> None:
        raise AssertionError("nothing is sent from here")

    is_in_memory = True
    head_runs = ()
    device_rows = None

    def writable(self, block: int, layer: int) -> memoryview:
        return memoryview(self._layers[layer][block])

    def writables(self, blocks: Sequence[int], planes: range) -> list[memoryview]:
        return [self.writable(block, plane) for plane in planes for block in blocks]

    def write_part(self, block: int, layer: int, offset: int, data: memoryview) -> None:
        self._layers[layer][block][offset : offset + len(data)] = data

    def scratch(self, num_bytes: int) -> memoryview:
        raise AssertionError("it is in memory")

    def write_blocks(self, blocks: Sequence[int], planes: range, data: memoryview) -> None:
        raise AssertionError("it is in memory")


def make_pool(num_blocks: int = 8, *, prefix_caching: bool = True) -> BlockPool:
    return BlockPool(FakeBytes(num_blocks), prefix_caching=prefix_caching)


def request(name: str) -> Holder:
    return Holder(HolderKind.REQUEST, name)


def lease(name: str) -> Holder:
    return Holder(HolderKind.LEASE, name)


def hold(pool: BlockPool, name: str, tokens: list[int], salt: bytes = SALT) -> Holder:
    """A request that holds `tokens`, all computed."""
    holder = request(name)
    assert pool.reserve(holder, tokens, salt) is not None
    pool.commit(holder, tokens, len(tokens), salt)
    return holder


def test_cached_blocks_of_another_tenant_are_no_room_for_what_follows_them() -> None:
    pool = make_pool(num_blocks=4)
    prefix = list(range(8))
    pool.release(hold(pool, "prefix", prefix))
    pool.reserve(request("other"), list(range(50, 58)), SALT)

    assert pool.reserve(request("longer"), [*prefix, *range(4)], SALT, tenant="b") is None
    assert pool.reserve(request("as long"), [*prefix[:5]], SALT, tenant="b") is not None


def test_a_prompt_seen_before_shares_its_full_blocks() -> None:
    pool = make_pool()
    first = hold(pool, "first", list(range(10)))

    num_cached = pool.reserve(request("second"), list(range(10)), SALT)

    assert num_cached == 8
    assert pool.table(request("second"))[:2] == pool.table(first)[:2]
    assert pool.num_in_use == 4


def test_a_prompt_whose_every_block_is_cached_still_computes_its_last_block() -> None:
    pool = make_pool()
    hold(pool, "first", list(range(8)))

    assert pool.reserve(request("second"), list(range(8)), SALT) == 4


def test_released_blocks_are_found_again() -> None:
    pool = make_pool()
    pool.release(hold(pool, "first", list(range(8))))

    assert pool.num_available == 8
    assert pool.reserve(request("second"), [*range(8), 99], SALT) == 8


def test_tenants_do_not_share_blocks() -> None:
    pool = make_pool()
    hold(pool, "first", list(range(8)), salt=b"one")

    assert pool.reserve(request("second"), list(range(8)), b"other") == 0


def test_blocks_that_are_not_full_or_not_computed_are_not_shared() -> None:
    pool = make_pool()
    tokens = list(range(12))
    pool.reserve(request("first"), tokens, SALT)
    pool.commit(request("first"), tokens, 7, SALT)

    assert pool.reserve(request("second"), tokens, SALT) == 4


def test_nothing_is_shared_when_prefix_caching_is_off() -> None:
    pool = make_pool(prefix_caching=False)
    pool.release(hold(pool, "first", list(range(8))))

    assert pool.reserve(request("second"), list(range(8)), SALT) == 0
    assert not pool.census().cached


def test_a_reservation_that_does_not_fit_changes_nothing() -> None:
    pool = make_pool(num_blocks=4)
    pool.release(hold(pool, "first", list(range(8))))
    hold(pool, "other", list(range(100, 107)))
    before = pool.census()

    assert pool.reserve(request("second"), list(range(13)), SALT) is None
    assert pool.census() == before


def test_growth_that_does_not_fit_changes_nothing() -> None:
    pool = make_pool(num_blocks=4)
    holder = hold(pool, "first", list(range(8)))
    before = pool.census()

    assert not pool.grow(holder, 17)
    assert pool.census() == before
    assert pool.grow(holder, 16)
    assert len(pool.table(holder)) == 4


def test_the_deepest_block_of_the_least_recently_used_chain_is_evicted_first() -> None:
    pool = make_pool(num_blocks=4)
    old, new = list(range(8)), list(range(100, 108))
    pool.release(hold(pool, "old", old))
    pool.release(hold(pool, "new", new))

    pool.grow(request("large"), 3 * BLOCK_SIZE)
    pool.release(request("large"))

    assert pool.reserve(request("old"), [*old, 0], SALT) == 0
    pool.release(request("old"))
    assert pool.reserve(request("new"), [*new, 0], SALT) == 4


def test_of_two_blocks_with_equal_contents_one_is_named_and_both_are_kept() -> None:
    pool = make_pool()
    tokens = list(range(4))
    for name in ("first", "second"):
        pool.reserve(request(name), tokens, SALT)
    for name in ("first", "second"):
        pool.commit(request(name), tokens, 4, SALT)

    pool.release(request("first"))
    pool.release(request("second"))

    assert len(pool.census().cached) == 1
    assert pool.num_available == 8


def test_commit_goes_on_where_it_stopped() -> None:
    pool = make_pool()
    tokens = list(range(20))
    holder = request("first")
    pool.reserve(holder, tokens, SALT)
    for num_computed in range(21):
        pool.commit(holder, tokens, num_computed, SALT)

    assert pool.reserve(request("second"), [*tokens, 0], SALT) == 20


def test_commit_refuses_more_tokens_than_the_blocks_hold() -> None:
    pool = make_pool()
    pool.grow(request("first"), 4)

    with pytest.raises(ValueError, match="too few blocks"):
        pool.commit(request("first"), list(range(8)), 8, SALT)


def test_shared_blocks_outlive_their_first_holder() -> None:
    pool = make_pool()
    holder = hold(pool, "first", list(range(10)))
    blocks = list(pool.table(holder))

    pool.share(holder, lease("out"), 2)
    pool.share(holder, lease("out"), 3)
    pool.release(holder)

    assert list(pool.table(lease("out"))) == blocks
    assert pool.num_in_use == 3
    pool.release(lease("out"))
    assert pool.num_in_use == 0


def test_more_blocks_than_the_source_has_cannot_be_shared() -> None:
    pool = make_pool()
    holder = hold(pool, "first", list(range(4)))

    with pytest.raises(ValueError, match="has 1 blocks, not 2"):
        pool.share(holder, lease("out"), 2)


def test_a_hand_over_moves_every_reference() -> None:
    pool = make_pool()
    source, target = lease("in"), request("adopted")
    pool.reserve(source, list(range(10)), SALT)
    blocks = list(pool.table(source))

    pool.hand_over(source, target)

    assert (list(pool.table(source)), list(pool.table(target))) == ([], blocks)
    assert pool.num_in_use == 3
    with pytest.raises(ValueError, match="holds blocks already"):
        pool.hand_over(source, target)


def test_what_was_handed_over_can_be_committed_and_matched() -> None:
    pool = make_pool()
    tokens = list(range(10))
    pool.reserve(lease("in"), tokens, SALT)
    pool.hand_over(lease("in"), request("adopted"))
    pool.commit(request("adopted"), tokens, 10, SALT)

    assert pool.reserve(request("second"), tokens, SALT) == 8


def test_only_a_block_held_once_and_unnamed_can_be_written() -> None:
    pool = make_pool()
    data = memoryview(bytes(range(pool.layout.layer_block_bytes)))
    holder = request("first")
    pool.reserve(holder, list(range(12)), SALT)
    pool.commit(holder, list(range(12)), 4, SALT)
    pool.share(holder, lease("out"), 2)

    pool.write(holder, 2, 1, data)

    assert bytes(pool.view(holder, 2, 1)) == bytes(data)
    assert bytes(pool.view(holder, 2, 0)) != bytes(data)
    with pytest.raises(ValueError, match="must not be written"):
        pool.write(holder, 1, 0, data)
    pool.release(lease("out"))
    with pytest.raises(ValueError, match="must not be written"):
        pool.write(holder, 0, 0, data)
    with pytest.raises(ValueError, match="none at 3"):
        pool.write(holder, 3, 0, data)


def test_release_may_be_repeated() -> None:
    pool = make_pool()
    holder = hold(pool, "first", list(range(10)))

    pool.release(holder)
    pool.release(holder)

    assert pool.num_available == 8


def test_after_a_reset_nothing_computed_before_is_found() -> None:
    pool = make_pool()
    tokens = list(range(16))
    pool.release(hold(pool, "gone", list(range(100, 108))))
    running = request("running")
    pool.reserve(running, tokens, SALT)
    pool.commit(running, tokens, 8, SALT)

    pool.reset_cache()
    pool.commit(running, tokens, 16, SALT)

    assert not pool.census().cached
    assert pool.reserve(request("again"), tokens, SALT) == 0
    pool.release(request("again"))
    pool.release(running)
    assert len(pool.census().free) == 8


def test_names_follow_the_model_and_the_tenant() -> None:
    roots = [root_hash(model, salt) for model in (b"a", b"b") for salt in (b"", b"s")]

    names = {next(block_hashes(root, range(BLOCK_SIZE), BLOCK_SIZE)) for root in roots}

    assert len(names) == 4


def test_what_was_computed_before_a_reset_is_not_found_through_whoever_shares_it() -> None:
    pool = make_pool()
    hold(pool, "before", list(range(9)))
    pool.reset_cache()

    pool.share(request("before"), lease("copy"), 2)
    pool.commit(lease("copy"), list(range(9)), 8, SALT)

    assert pool.num_cached(list(range(9)), SALT) == 0


def test_kv_that_is_struck_while_a_copy_of_it_comes_in_is_not_found_by_that_copy() -> None:
    pool = make_pool()
    tokens = list(range(9))
    assert pool.reserve(lease("coming in"), tokens, SALT) == 0
    hold(pool, "not finite", tokens[:5])

    pool.forget(request("not finite"))
    pool.commit(lease("coming in"), tokens, 8, SALT)

    assert pool.num_cached(tokens, SALT) == 0
    pool.release(lease("coming in"))
    hold(pool, "computed anew", tokens)
    assert pool.num_cached(tokens, SALT) == 8
