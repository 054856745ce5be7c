"""A step waits for its device once, when its tokens are read: nothing before asks it anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import tiny_checkpoints as tiny
from tests.engine.model_runs import make_runner
from tests.kernels.gpu.waits import waits

from baton.core.sampling import SamplingParams
from baton.engine.batch.batch import Chunk
from baton.engine.sampling.sampler import draw
from baton.engine.sampling.sampling_plan import SamplingPlan
from baton.engine.sampling.sampling_row import SamplingRow

DECODES = (Chunk((3,), 9, (1, 2, 3), 1), Chunk((4,), 5, (4, 5, 6), 1))
MIXED = (DECODES[0], Chunk(range(5), 0, (4, 5), 1))


def waits_of(folder: Path, chunks: Sequence[Chunk]) -> list[str]:
    runner = make_runner(folder, dtype="float16")  # whose weights are plain tensors everywhere
    runner.taped = None
    runner.cache.__dict__.pop("layers")  # chosen anew, as on a GPU
    with waits() as found:
        runner._layers = runner.cache.layers
        runner.logits(runner.forward(chunks))
        assert runner.model.is_capturable
    return found


def test_what_waits_is_seen() -> None:
    x = torch.arange(4)
    with waits() as found:
        x.tolist()
        if x[1] > 0:
            x[x > 2] = x.sum().item()
        torch.tensor([1], device="cpu")
        x.nonzero()
        x.repeat_interleave(x)
        x.repeat_interleave(torch.ones_like(x), output_size=4)

    reading, sizes = ["tolist", "__bool__", "item"], ["nonzero", "repeat_interleave"]
    assert found == [*reading, "index_put_", "tensor", *sizes]


def test_a_pass_does_not_wait(tmp_path: Path) -> None:
    folder = tiny.make_llama(tmp_path, num_hidden_layers=1)

    assert waits_of(folder, DECODES) == []


@pytest.mark.wide
@pytest.mark.parametrize("chunks", [DECODES, MIXED], ids=["decodes", "mixed"])
@pytest.mark.parametrize(
    "make",
    [
        *(tiny.make_gemma2, tiny.make_gpt_oss, tiny.make_qwen2_moe),
        *(tiny.make_deepseek_v3, tiny.make_deepseek_v32, tiny.make_llama4),
    ],
)
def test_no_family_waits(
    make: Callable[..., Path], chunks: Sequence[Chunk], tmp_path: Path
) -> None:
    assert waits_of(make(tmp_path), chunks) == []


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.7, "seed": 3},
        {"temperature": 1.0, "top_k": 5, "top_p": 0.8, "min_p": 0.1, "seed": 1},
        {"repetition_penalty": 1.2, "presence_penalty": 0.5, "logit_bias": ((3, 2.0), (5, -1.0))},
    ],
    ids=["greedy", "by temperature", "filtered", "penalised and biased"],
)
def test_a_draw_does_not_wait(params: dict[str, Any]) -> None:
    rows = [
        SamplingRow(SamplingParams(**params), [1, 2, 3], [4]),
        SamplingRow(SamplingParams(), [1], []),
    ]
    logits = torch.randn(2, 64, generator=torch.Generator().manual_seed(1))

    with waits() as found:
        plan = SamplingPlan(rows, "cpu")
        for _ in range(2):
            draw(logits, plan, [1])

    assert found == []
