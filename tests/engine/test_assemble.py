from __future__ import annotations

from pathlib import Path

import pytest
from tests.tiny_checkpoints import make_llama

from baton.engine.assemble import assemble_engine
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig


def test_a_context_longer_than_the_models_is_told_to_be_shorter(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_llama(tmp_path)
    cache = CacheConfig(block_size=4, num_blocks=512)

    for wanted, told in ((512, []), (9999, ["the model takes 512 tokens a request, not 9999"])):
        config = EngineConfig(cache=cache, scheduler=SchedulerConfig(max_model_len=wanted))
        engine = assemble_engine(folder, config, dtype="float32", device="cpu")

        assert engine.max_model_len == 512
        assert [text.removeprefix("max_model_len: ") for text in caplog.messages] == told
