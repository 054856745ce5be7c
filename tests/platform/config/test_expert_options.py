"""What a deployment may ask of ranks with whole experts, and what it is told otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.quantization.checkpoint_writer import LAYOUTS, write_layout
from tests.tiny_checkpoints import make_llama, make_mixtral, make_qwen3_moe

from baton.core.errors import InvalidConfig
from baton.engine.checkpoint.load import read_config
from baton.platform.cluster.ranks.rank_check import check_ranks
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.doctor.demand import demand_of


def deployment(**of_decode: object) -> DeploymentConfig:
    paths = {f"decode.parallel.{name}": value for name, value in of_decode.items()}
    return override(DeploymentConfig(), paths)


def test_experts_are_spread_over_whole_tensor_groups() -> None:
    with pytest.raises(InvalidConfig, match=r"it can be 1, 2 .* `\$\.decode\.parallel`"):
        deployment(tensor=2, expert=4)
    with pytest.raises(InvalidConfig, match=r"it can be 1, 2"):
        deployment(tensor=2, expert=3)

    assert deployment(tensor=2, expert=2).decode.parallel.size == 2


@pytest.mark.parametrize("name", ["redundant_experts", "rebalance_passes"])
def test_what_is_about_whole_experts_is_refused_without(name: str) -> None:
    with pytest.raises(InvalidConfig, match=f"{name} needs expert parallelism"):
        deployment(tensor=2, **{name: 1})

    assert deployment(tensor=2, expert=2, **{name: 1})


def test_an_engine_is_told_when_to_move_experts() -> None:
    config = deployment(tensor=2, expert=2, rebalance_passes=500)

    assert config.decode.engine.rebalance_passes == 500
    assert config.prefill.engine.rebalance_passes == 0


def test_a_model_that_has_too_few_or_none_is_refused_with_the_key(tmp_path: Path) -> None:
    dense, mixtral = make_llama(tmp_path / "dense"), make_mixtral(tmp_path / "mixtral")

    with pytest.raises(InvalidConfig, match=r"decode\.parallel\.expert: .* has no experts"):
        check_ranks(deployment(tensor=2, expert=2), dense)
    with pytest.raises(InvalidConfig, match=r"decode\.parallel\.tensor: .* takes 1, 2 or 4"):
        check_ranks(deployment(tensor=8, expert=8), mixtral)
    with pytest.raises(InvalidConfig, match=r"decode\.parallel\.expert: .* 2 more are all"):
        check_ranks(deployment(tensor=2, expert=2, redundant_experts=3), mixtral)

    check_ranks(deployment(tensor=2, expert=2, redundant_experts=2), mixtral)


def test_a_width_that_does_not_divide_is_no_reason_where_experts_are_whole(tmp_path: Path) -> None:
    folder = make_qwen3_moe(tmp_path, moe_intermediate_size=18)

    with pytest.raises(InvalidConfig, match="must divide `moe_intermediate_size`, which is 18"):
        check_ranks(deployment(tensor=4), folder)
    check_ranks(deployment(tensor=4, expert=4), folder)


def test_a_rank_wants_memory_for_its_own_experts(tmp_path: Path) -> None:
    folder = make_mixtral(tmp_path, num_local_experts=8, intermediate_size=512)
    layers = read_config(folder).num_layers
    blocks = {f"{pool}.cache.num_blocks": 10 for pool in ("prefill", "decode")}

    def memory(**of_decode: object) -> int:
        config = override(deployment(**of_decode), blocks)
        return demand_of(config, folder, is_on_gpu=False).memory_bytes

    sliced, whole = memory(tensor=2), memory(tensor=2, expert=2)
    more = memory(tensor=2, expert=2, redundant_experts=1)

    assert whole == sliced
    assert more - whole == 2 * layers * 3 * 512 * 32 * 4


def test_pools_that_keep_experts_as_stored_and_widened_are_refused(tmp_path: Path) -> None:
    original = make_mixtral(tmp_path / "wide", hidden_size=128, intermediate_size=256)
    folder = write_layout(original, tmp_path / "model", LAYOUTS["gptq 4"])
    both = {"prefill.parallel.tensor": 2, "decode.parallel.tensor": 2}
    unlike = override(DeploymentConfig(), {**both, "decode.parallel.expert": 2})

    with pytest.raises(InvalidConfig, match=r"set quantize to wide, or parallel\.expert above 1"):
        check_ranks(unlike, folder)

    check_ranks(override(unlike, {"quantize": "wide"}), folder)
    check_ranks(override(unlike, {"prefill.parallel.expert": 2}), folder)
