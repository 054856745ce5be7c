"""`bench.gpu` as it runs without a GPU: all kernels are checked, and passes can be measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from bench.gpu.__main__ import main
from bench.gpu.clock import Ceilings
from bench.gpu.engine import LLAMA_8B, EngineBench, dummy_model, fp8_model

TINY = {
    **LLAMA_8B,
    "vocab_size": 64,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
CEILINGS = Ceilings(1e9, 1e9, 1e9)


@pytest.mark.wide
@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")
def test_all_kernels_are_right_in_the_interpreter(tmp_path: Path) -> None:
    assert main(["--check-only", "--interpret", "--out", str(tmp_path)]) == 0

    found = json.loads((tmp_path / "gpu.json").read_text())
    assert all(each["is_right"] for each in found["checked"])
    assert found["timed"] == []


@pytest.mark.parametrize("is_narrow", [False, True])
def test_steps_and_prompts_are_measured_beside_their_limits(is_narrow: bool) -> None:
    loaded = fp8_model(TINY, "cpu") if is_narrow else dummy_model(TINY, "cpu", "bfloat16")
    with torch.inference_mode():
        bench = EngineBench("tiny", loaded, "cpu", max_requests=2)
        rows = [bench.decode(2, 40, CEILINGS), bench.prefill(50, CEILINGS)]
        rows += bench.mixed(1, 40, 20, CEILINGS)

    weights = 2 * (128 * 256 + 128 * 128 + 3 * 128 * 128) + 64 * 128
    kept = weights * (1 if is_narrow else 2)
    assert kept <= bench.weight_bytes <= kept + 2048  # and the norms
    kv_bytes = 2 * 2 * 2 * 2 * 48 * 32 * 2  # 40 tokens lie in 3 blocks
    assert rows[0].least_seconds == pytest.approx((bench.weight_bytes + kv_bytes) / 1e9)
    assert all(row.seconds > 0 for row in rows)
