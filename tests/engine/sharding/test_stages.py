"""Which layers a stage has, and what else."""

from __future__ import annotations

from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tiny_checkpoints import FAMILIES

from baton.core.errors import InvalidConfig
from baton.core.kv_layout import KvLayout, SideCache
from baton.engine.checkpoint.load import read_config
from baton.engine.mesh.mesh import Mesh
from baton.engine.models.registry import family_of
from baton.engine.sharding.cutting import share_of
from baton.engine.sharding.stages import balanced, keep_stage, kv_of_layers, spread_layers


@given(st.lists(st.integers(0, 9), min_size=1, max_size=7), st.data())
def test_runs_are_as_even_as_runs_can_be(sizes: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(sizes)))

    firsts = data.draw(st.sets(st.sampled_from(range(len(sizes))), min_size=count)) | {0}

    runs = balanced(sizes, count, firsts)

    cuts = combinations(sorted(firsts - {0}), count - 1)
    every = [[range(*span) for span in pairwise((0, *cut, len(sizes)))] for cut in cuts]
    assert list(runs) in every
    assert unevenness(sizes, runs) == min(unevenness(sizes, each) for each in every)


def unevenness(sizes: list[int], runs: tuple[range, ...] | list[range]) -> int:
    return sum(sum(sizes[place] for place in run) ** 2 for run in runs)


def test_a_large_table_of_tokens_leaves_its_stage_fewer_layers(tmp_path: Path) -> None:
    config = read_config(FAMILIES["llama"](tmp_path, num_hidden_layers=6, vocab_size=2000))
    model = family_of(config.architecture).build(config)

    first, middle, last = spread_layers(model, config, 3)

    assert len(first) == len(last) == 1
    assert middle == range(1, 5)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_stages_have_all_parts_of_a_model_and_only_a_shared_table_twice(
    family: str, tmp_path: Path
) -> None:
    config = read_config(FAMILIES[family](tmp_path))
    build = family_of(config.architecture).build
    every = {name for name, _ in build(config).named_parameters()}

    found: list[str] = []
    for layers in (range(1), range(1, config.num_layers)):
        stage = build(config)
        keep_stage(stage, layers)
        found += [name for name, _ in stage.named_parameters()]

    assert set(found) == every
    twice = {name for name in found if found.count(name) > 1}
    assert twice == ({"embed.weight"} if config.tie_word_embeddings else set())


def test_groups_of_layers_go_with_their_layers() -> None:
    keys = SideCache(name="keys", layers=(0, 2, 3), width=4, dtype="float32")
    layout = KvLayout(
        model_fingerprint=b"",
        dtype="float32",
        num_layers=4,
        num_kv_heads=1,
        head_dim=8,
        block_size=4,
        side_caches=(keys,),
    )

    first, second, third = (
        kv_of_layers(layout, run) for run in (range(1), range(1, 2), range(2, 4))
    )

    assert [side.layers for side in first.side_caches] == [(0,)]
    assert second.side_caches == ()
    assert [side.layers for side in third.side_caches] == [(0, 1)]
    assert (*first.planes, *second.planes, *third.planes) == layout.planes


def test_more_stages_than_layers_are_refused(tmp_path: Path) -> None:
    config = read_config(FAMILIES["llama"](tmp_path, num_hidden_layers=3))

    with pytest.raises(InvalidConfig, match=": 3 of the 3 layers of this model can be the first"):
        share_of(config, Mesh(pipeline=4))
