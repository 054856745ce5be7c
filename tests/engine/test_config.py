from __future__ import annotations

import pytest

from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig, SpeculationConfig


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [
        (CacheConfig, "block_size", 0),
        (CacheConfig, "num_blocks", -1),
        (CacheConfig, "memory_gib", 0.0),
        (CacheConfig, "memory_fraction", 85),
        (SchedulerConfig, "max_batch_tokens", 0),
        (SchedulerConfig, "max_running", 0),
        (SchedulerConfig, "max_model_len", 0),
        (SchedulerConfig, "prefill_chunk", 0),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_name(
    config: type[CacheConfig] | type[SchedulerConfig], field: str, value: float
) -> None:
    with pytest.raises(ValueError, match=f"{field} must be"):
        config(**{field: value})  # type: ignore[arg-type]


def test_the_pool_is_sized_in_one_way_only() -> None:
    with pytest.raises(ValueError, match="num_blocks and memory_gib"):
        CacheConfig(num_blocks=8, memory_gib=1.0)


def test_a_draft_model_that_no_method_would_ask_is_refused_with_the_remedy() -> None:
    for method in ("off", "suffix"):
        with pytest.raises(ValueError, match="--speculate draft"):
            SpeculationConfig(method=method, model="small")


def test_the_defaults_work() -> None:
    assert EngineConfig().cache.block_size == 16
