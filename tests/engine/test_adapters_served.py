"""Greedy answers with adapters are PEFT's, whatever else an engine computes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from tests.engine.adapted_answers import adapted, answers

from baton.engine.assemble import assemble_engine
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig, SpeculationConfig


def config(*, num_blocks: int = 64, speculation: Literal["off", "ngram"] = "off") -> EngineConfig:
    return EngineConfig(
        cache=CacheConfig(block_size=4, num_blocks=num_blocks),
        scheduler=SchedulerConfig(prefill_chunk=7, max_batch_tokens=64),
        speculation=SpeculationConfig(method=speculation),
    )


@pytest.mark.parametrize(
    "of_engine",
    [config(), config(num_blocks=24), config(speculation="ngram")],
    ids=["plain", "preempting", "speculating"],
)
def test_an_engine_answers_as_peft_does(of_engine: EngineConfig, tmp_path: Path) -> None:
    base, folders, expected = adapted("llama", tmp_path)
    engine = assemble_engine(base, of_engine, dtype="float32", adapters=folders)

    assert engine.info.adapters == ("first", "second")
    assert answers(engine) == expected
    assert answers(engine) == expected  # from the prefix cache
