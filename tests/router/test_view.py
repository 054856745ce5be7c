"""What a gateway sees of its replicas for one prompt."""

from __future__ import annotations

from dataclasses import replace

from tests.gateway.fleet.known_replicas import known, make_replica

from baton.core.kv_events import KvChange, KvEvent, KvEvents
from baton.core.replicas import ReplicaInfo, Role
from baton.router.cache.kv_index import KvIndex
from baton.router.cache.prompt_names import PromptNames
from baton.router.cache.pulling import PullRates
from baton.router.replicas.pool import Pool
from baton.router.replicas.view import View, look

PROMPT = tuple(range(50))


def pool_of(*infos: ReplicaInfo) -> Pool:
    pool = Pool()
    for info in infos:
        pool.join(known(info).replica)
    return pool


def store(index: KvIndex, info: ReplicaInfo, num_tokens: int) -> None:
    """Let a replica have so many tokens of the prompt, in its own blocks."""
    names = PromptNames(PROMPT[:num_tokens]).under(info.layout).packed
    events = (KvEvent(KvChange.STORED, names),)
    index.apply(info.epoch, KvEvents(first_sequence=1, events=events, is_snapshot=True))


def seen(index: KvIndex, decode: Pool, prefill: Pool) -> View:
    return look(PromptNames(PROMPT), index, decode, prefill, PullRates())


def test_a_prompt_is_found_on_replicas_whose_blocks_are_of_unequal_size() -> None:
    narrow = make_replica("d")
    wide = make_replica("p", role=Role.PREFILL)
    wide = replace(wide, layout=replace(wide.layout, block_size=16))
    index, decode, prefill = KvIndex(), pool_of(narrow, make_replica("d2")), pool_of(wide)
    store(index, narrow, 23)
    store(index, wide, 47)
    index.expect(PromptNames(PROMPT).under(wide.layout), wide.epoch)
    index.expect(PromptNames(PROMPT).under(narrow.layout)[:2], make_replica("d2").epoch)

    view = seen(index, decode, prefill)

    assert view.decode.cached.tolist() == [20, 0] and view.decode.expected.tolist() == [0, 8]
    assert view.prefill.cached.tolist() == [32] and view.prefill.expected.tolist() == [48]


def test_a_replica_is_found_by_its_new_number_after_it_was_cleared_and_others_left() -> None:
    one, two, three = (make_replica(name) for name in ("d1", "d2", "d3"))
    index, decode = KvIndex(), pool_of(one, two, three)
    for info in (one, two, three):
        store(index, info, 8)
    assert seen(index, decode, Pool()).decode.cached.tolist() == [8, 8, 8]

    index.forget(one.epoch)
    decode.leave(one.epoch)
    store(index, three, 40)
    index.apply(two.epoch, KvEvents(first_sequence=1, events=(KvEvent(KvChange.CLEARED),)))

    assert seen(index, decode, Pool()).decode.cached.tolist() == [0, 40]
    decode.join(known(one).replica)
    assert seen(index, decode, Pool()).decode.cached.tolist() == [0, 40, 0]
