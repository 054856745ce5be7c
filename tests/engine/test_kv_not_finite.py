"""A key or value that is not finite fails its request, however KV is kept: it is never left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.tiny_checkpoints import make_llama

from baton.core.errors import Unavailable
from baton.core.sampling import SamplingParams
from baton.engine.assemble import engine_around
from baton.engine.checkpoint.load import load_model
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.request.request import Request


def make_spoilt(folder: Path, projection: str) -> Path:
    """A dimension of one head overflows in the last layer, and in nothing else."""
    (path,) = make_llama(folder).glob("*.safetensors")
    tensors = load_file(path)
    tensors[f"model.layers.1.self_attn.{projection}.weight"][0] = torch.inf
    path.unlink()
    save_file(tensors, path, {"format": "pt"})
    return folder


@pytest.mark.parametrize("kv_dtype", ["auto", "int8", "fp8", "int4"])
@pytest.mark.parametrize("projection", ["k_proj", "v_proj"])
def test_kv_that_overflows_fails_its_request_and_leaves_nothing_behind(
    tmp_path: Path, projection: str, kv_dtype: Any
) -> None:
    cache = CacheConfig(block_size=4, num_blocks=32, kv_dtype=kv_dtype)
    config = EngineConfig(cache=cache, scheduler=SchedulerConfig(prefill_chunk=6))
    engine = engine_around(load_model(make_spoilt(tmp_path, projection)), config, "cpu")
    sampling = SamplingParams(temperature=0.0, max_tokens=4)
    engine.add(request := Request("spoilt", range(2, 13), sampling=sampling))

    outputs = [output for _ in range(2) for output in engine.step().outputs]

    assert [type(output.error) for output in outputs] == [Unavailable]
    assert not request.output
    assert engine.pool.num_in_use == engine.pool.num_cached(request.tokens, b"") == 0
