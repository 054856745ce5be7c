"""What a deployment will want of a machine, told from its configuration and its model."""

from __future__ import annotations

import json
from pathlib import Path

from baton.engine.checkpoint.load import read_config
from baton.platform.config import DeploymentConfig, override
from baton.platform.doctor.demand import demand_of, kv_bytes, weights_bytes
from baton.platform.doctor.node_checks import GIB
from baton.platform.model_folder import find_model

DEMO = find_model("demo")


def config(**changes: object) -> DeploymentConfig:
    paths = {path.replace("__", "."): value for path, value in changes.items()}
    return override(DeploymentConfig(), paths)


def test_every_replica_has_weights_and_kv_of_its_own() -> None:
    three = config(prefill__replicas=2, decode__cache__memory_gib=2.0)

    found = demand_of(three, DEMO, is_on_gpu=False)

    assert found.num_replicas == 3
    assert found.memory_bytes == 3 * weights_bytes(DEMO) + 2 * GIB + 2 * GIB


def test_a_pool_of_blocks_is_as_large_as_its_blocks() -> None:
    model = read_config(DEMO)
    small, large = (
        kv_bytes(config(decode__cache__num_blocks=n).decode.cache, model, "float32")
        for n in (10, 20)
    )
    half = kv_bytes(config(decode__cache__num_blocks=10).decode.cache, model, "bfloat16")

    assert large == 2 * small == 4 * half


def test_on_a_gpu_only_tiers_want_the_hosts_memory() -> None:
    tiered = config(tiers__host__gib=4.0)

    assert demand_of(tiered, DEMO, is_on_gpu=True).memory_bytes == 2 * 4 * GIB


def test_a_disk_tier_wants_its_room_for_every_replica() -> None:
    tiered = config(tiers__disk__folder="/var/kv", tiers__disk__gib=8.0)

    assert demand_of(tiered, DEMO, is_on_gpu=False).disk_bytes == {"/var/kv": 2 * 8 * GIB}


def test_threads_are_counted_as_they_are_set() -> None:
    wide = config(decode__resources__num_threads=6)

    assert demand_of(wide, DEMO, is_on_gpu=False).num_threads == 6 + 1


def test_dummy_weights_weigh_nothing_on_disk() -> None:
    with_weights = demand_of(config(), DEMO, is_on_gpu=False).memory_bytes
    without = demand_of(config(load_format="dummy"), DEMO, is_on_gpu=False).memory_bytes

    assert with_weights - without == 2 * weights_bytes(DEMO)


def test_weights_that_are_still_to_be_downloaded_are_announced_by_their_index(
    tmp_path: Path,
) -> None:
    index = {"metadata": {"total_size": 123}, "weight_map": {}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))

    assert weights_bytes(tmp_path) == 123
