"""A model that cannot be split is refused before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.layout_writer import LAYOUTS, write_layout
from tests.tiny_checkpoints import FAMILIES

from baton.core.errors import InvalidConfig
from baton.platform.config import DeploymentConfig, override
from baton.platform.rank_check import check_ranks


def deployment(**tensor: int) -> DeploymentConfig:
    return override(
        DeploymentConfig(), {f"{pool}.parallel.tensor": size for pool, size in tensor.items()}
    )


@pytest.mark.parametrize(
    ("family", "size", "reason", "sizes"),
    [
        ("llama", 8, "`num_attention_heads` 4", "1, 2 or 4"),
        ("llama", 3, "2 KV heads", "1, 2 or 4"),
        ("qwen3 moe", 8, "`num_attention_heads` 4", "1, 2 or 4"),
        ("deepseek v3", 3, "`num_attention_heads` 4", "1, 2 or 4"),
    ],
)
def test_the_key_the_reason_and_what_would_do_are_named(
    family: str, size: int, reason: str, sizes: str, tmp_path: Path
) -> None:
    folder = FAMILIES[family](tmp_path)

    with pytest.raises(InvalidConfig) as refused:
        check_ranks(deployment(decode=size), folder)

    assert str(refused.value).startswith(f"decode.parallel.tensor: tensor parallel {size}: ")
    assert reason in str(refused.value)
    assert str(refused.value).endswith(f"this model takes {sizes}")


def test_what_can_be_split_is_let_through_and_a_pool_of_nobody_is_not_looked_at(
    tmp_path: Path,
) -> None:
    folder = FAMILIES["llama"](tmp_path)
    none = override(deployment(prefill=3), {"prefill.replicas": 0})

    check_ranks(deployment(prefill=4, decode=2), folder)
    check_ranks(none, folder)


@pytest.mark.parametrize(
    ("transfer", "key"),
    [({"transfer.transport": "shm"}, "transport"), ({"transfer.require": ["nccl"]}, "require")],
)
def test_a_transport_that_reads_what_lies_in_pieces_is_refused(
    transfer: dict[str, object], key: str, tmp_path: Path
) -> None:
    folder = FAMILIES["llama"](tmp_path)

    with pytest.raises(InvalidConfig, match=rf"transfer\.{key}: .* grpc can carry it"):
        check_ranks(override(deployment(prefill=2), transfer), folder)

    check_ranks(override(deployment(decode=2), transfer), folder)
    check_ranks(override(deployment(prefill=2), {"transfer.transport": "gloo"}), folder)


def test_a_quantised_checkpoint_on_pools_of_one_rank_and_of_several_is_refused(
    tmp_path: Path,
) -> None:
    original = FAMILIES["llama"](tmp_path / "wide", hidden_size=128, intermediate_size=256)
    folder = write_layout(original, tmp_path / "model", LAYOUTS["gptq 4"])

    with pytest.raises(InvalidConfig, match="set it to wide, or give both pools several ranks"):
        check_ranks(deployment(prefill=2), folder)

    check_ranks(deployment(prefill=2, decode=4), folder)
    check_ranks(override(deployment(prefill=2), {"quantize": "wide"}), folder)
    check_ranks(deployment(prefill=2), original)
