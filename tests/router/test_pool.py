"""A pool knows one layout of each way in which its replicas name blocks."""

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
