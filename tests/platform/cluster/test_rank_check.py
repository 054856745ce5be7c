"""A model that cannot be split is refused before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.quantization.checkpoint_writer import LAYOUTS, write_layout
from tests.tiny_checkpoints import FAMILIES

from baton.core.errors import InvalidConfig
from baton.platform.cluster.ranks.rank_check import check_ranks
from baton.platform.config.deployment import DeploymentConfig, override


def deployment(**tensor: int) -> DeploymentConfig:
    return override(
        DeploymentConfig(), {f"{pool}.parallel.tensor": size for pool, size in tensor.items()}
    )


@pytest.mark.parametrize(
    ("family", "size", "reason", "sizes"),
    [
        ("llama", 8, "`num_attention_heads`, which is 4", "1, 2 or 4"),
        ("llama", 3, "2 KV heads", "1, 2 or 4"),
        ("qwen3 moe", 8, "`num_attention_heads`, which is 4", "1, 2 or 4"),
        ("deepseek v3", 3, "`num_attention_heads`, which is 4", "1, 2 or 4"),
    ],
)
def test_the_key_the_reason_and_what_would_do_are_named(
    family: str, size: int, reason: str, sizes: str, tmp_path: Path
) -> None:
    folder = FAMILIES[family](tmp_path)

    with pytest.raises(InvalidConfig) as refused:
        check_ranks(deployment(decode=size), folder)

    assert str(refused.value).startswith(f"decode.parallel.tensor: tensor parallel {size}")
    assert reason in str(refused.value)
    assert str(refused.value).endswith(f"this model takes {sizes}")


def test_more_stages_than_layers_are_refused_with_what_would_do(tmp_path: Path) -> None:
    folder = FAMILIES["llama"](tmp_path, num_hidden_layers=3)
    four = override(DeploymentConfig(), {"prefill.parallel.pipeline": 4})

    with pytest.raises(InvalidConfig) as refused:
        check_ranks(four, folder)

    assert str(refused.value).startswith("prefill.parallel.pipeline: pipeline parallel 4: ")
    assert str(refused.value).endswith("this model takes 1, 2 or 3")


def test_what_can_be_split_is_let_through_and_a_pool_of_nobody_is_not_looked_at(
    tmp_path: Path,
) -> None:
    folder = FAMILIES["llama"](tmp_path)
    none = override(deployment(prefill=3), {"prefill.replicas": 0})

    check_ranks(deployment(prefill=4, decode=2), folder)
    check_ranks(none, folder)


@pytest.mark.parametrize(
    ("transfer", "key"),
    [({"transfer.transport": "nccl"}, "transport"), ({"transfer.require": ["nccl"]}, "require")],
)
def test_a_transport_that_reads_what_lies_in_pieces_is_refused(
    transfer: dict[str, object], key: str, tmp_path: Path
) -> None:
    folder = FAMILIES["llama"](tmp_path)

    with pytest.raises(InvalidConfig, match=rf"transfer\.{key}: .* choose from .* grpc$"):
        check_ranks(override(deployment(prefill=2), transfer), folder)

    check_ranks(override(deployment(decode=2), transfer), folder)
    check_ranks(override(deployment(prefill=2), {"transfer.transport": "shm"}), folder)


def test_ranks_that_share_prompts_are_where_prompts_are_computed(tmp_path: Path) -> None:
    folder = FAMILIES["llama"](tmp_path)
    prefill, decode = (
        override(DeploymentConfig(), {f"{pool}.parallel.context": 2})
        for pool in ("prefill", "decode")
    )

    check_ranks(prefill, folder)
    check_ranks(override(decode, {"prefill.replicas": 0}), folder)
    with pytest.raises(InvalidConfig, match=r"^decode\.parallel\.context: .* set prefill\."):
        check_ranks(decode, folder)
    with pytest.raises(InvalidConfig, match=r"^prefill\.parallel\.context: .* set decode\."):
        check_ranks(override(prefill, {"prefill.replicas": 0}), folder)


def test_blocks_that_are_open_and_prompts_that_are_shared_are_refused_with_the_key(
    tmp_path: Path,
) -> None:
    sealed = {f"{pool}.cache.kv_dtype": "int4" for pool in ("prefill", "decode")}
    config = override(DeploymentConfig(), {"prefill.parallel.context": 2, **sealed})

    with pytest.raises(InvalidConfig, match=r"^prefill\.cache\.kv_dtype: .* set it to int8$"):
        check_ranks(config, FAMILIES["llama"](tmp_path))


def test_two_ranks_on_one_gpu_are_refused_with_the_key(tmp_path: Path) -> None:
    folder = FAMILIES["llama"](tmp_path)
    half = {"decode.resources.num_gpus": 0.5}

    check_ranks(override(DeploymentConfig(), half), folder)
    with pytest.raises(InvalidConfig, match=r"^decode\.resources\.num_gpus: .* set it to 1$"):
        check_ranks(override(deployment(decode=2), half), folder)


def test_ranks_that_share_prompts_alone_can_be_read_by_any_transport(tmp_path: Path) -> None:
    folder = FAMILIES["llama"](tmp_path)
    nccl = override(DeploymentConfig(), {"transfer.transport": "nccl"})

    check_ranks(override(nccl, {"prefill.parallel.context": 2}), folder)
    with pytest.raises(InvalidConfig, match=r"choose from .* grpc"):
        both = {"prefill.parallel.context": 2, "prefill.parallel.tensor": 2}
        check_ranks(override(nccl, both), folder)


def test_a_quantised_checkpoint_on_pools_of_one_rank_and_of_several_is_refused(
    tmp_path: Path,
) -> None:
    original = FAMILIES["llama"](tmp_path / "wide", hidden_size=128, intermediate_size=256)
    folder = write_layout(original, tmp_path / "model", LAYOUTS["gptq 4"])

    with pytest.raises(InvalidConfig, match=r"set quantize to wide, or parallel\.tensor above 1"):
        check_ranks(deployment(prefill=2), folder)

    check_ranks(deployment(prefill=2, decode=4), folder)
    check_ranks(override(DeploymentConfig(), {"prefill.parallel.pipeline": 2}), folder)
    check_ranks(override(deployment(prefill=2), {"quantize": "wide"}), folder)
    check_ranks(deployment(prefill=2), original)


def test_engines_that_share_nothing_are_refused_with_what_would_do(tmp_path: Path) -> None:
    folder = FAMILIES["mixtral"](tmp_path, num_local_experts=4)
    sharing = {"decode.parallel.data": 2, "decode.parallel.expert": 2}
    check_ranks(override(DeploymentConfig(), sharing), folder)
    alone = override(DeploymentConfig(), {"decode.parallel.data": 2})

    with pytest.raises(InvalidConfig) as refused:
        check_ranks(alone, folder)

    assert str(refused.value).startswith("decode.parallel.data: data parallel 2: ")
    assert str(refused.value).endswith("or use more replicas")
