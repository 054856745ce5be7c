"""A pool knows a layout of each way to name blocks, and how many replicas take requests."""

from __future__ import annotations

from dataclasses import replace

from tests.gateway.fleet.known_replicas import LAYOUT, known, make_replica

from baton.router.cache.prompt_names import way_to_name
from baton.router.replicas.pool import Pool

OTHER = replace(LAYOUT, block_size=2 * LAYOUT.block_size)


def test_a_way_to_name_blocks_is_known_while_anybody_names_them_so() -> None:
    pool = Pool()
    infos = [make_replica("a"), replace(make_replica("b"), layout=OTHER), make_replica("c")]
    for info in infos:
        pool.join(known(info).replica)
    assert [*pool.layouts] == [LAYOUT, OTHER]

    pool.leave(infos[0].epoch)
    assert [*pool.ways] == [way_to_name(LAYOUT), way_to_name(OTHER)]
    assert [pool.row(info.epoch) for info in infos] == [None, 0, 1]
    pool.leave(infos[2].epoch)

    assert [*pool.layouts] == [OTHER]
    assert [*pool.ways] == [way_to_name(OTHER)]


def test_a_pool_counts_those_that_take_requests_also_where_they_are_full() -> None:
    pool = Pool()
    full, gone = known(make_replica("a"), num_open=99), known(make_replica("b"), is_connected=False)
    for one in (full, gone):
        pool.join(one.replica)
    assert (pool.num_open, pool.num_taking) == (0, 1)

    gone.replica.is_connected = True
    pool.write(gone.replica)
    assert pool.num_taking == 2
    full.replica.is_ordered_to_drain = True
    pool.write(full.replica)
    assert pool.num_taking == 1
    pool.leave(full.replica.info.epoch)
    assert pool.num_taking == 1
    pool.leave(gone.replica.info.epoch)

    assert pool.num_taking == 0
