"""Rotary positions of every kind against transformers: their angles, and what comes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.model_runs import assert_near, logits_in_chunks, make_prompt, make_runner
from tests.tiny_checkpoints import LLAMA3_ROPE, make_llama, make_phi3, transformers_logits
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from baton.engine.checkpoint.load import load_model
from baton.engine.models.config.keys import ConfigKeys
from baton.engine.models.config.rope import RopeKeys, parse_rope

HEAD_DIM, MAX_LEN = 64, 4096
PARTIAL = RopeKeys(may_be_partial=True)

DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 1024,
}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1 + i / 10 for i in range(HEAD_DIM // 2)],
    "long_factor": [2 + i * i / 10 for i in range(HEAD_DIM // 2)],
    "original_max_position_embeddings": 1024,
}


def all_keys(parameters: dict[str, Any]) -> ConfigKeys:
    return ConfigKeys({"max_position_embeddings": MAX_LEN, "rope_parameters": parameters})


@pytest.mark.parametrize(
    ("parameters", "served_len"),
    [
        ({"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}, MAX_LEN),
        (DYNAMIC, MAX_LEN // 2),
        (DYNAMIC, MAX_LEN),
        (DYNAMIC, MAX_LEN + 1),
        (DYNAMIC, 4 * MAX_LEN),
        (YARN, MAX_LEN),
        ({**YARN, "truncate": False, "beta_fast": 16, "beta_slow": 2}, MAX_LEN),
        ({**YARN, "attention_factor": 1.7}, MAX_LEN),
        ({**YARN, "mscale": 0.7, "mscale_all_dim": 1.2}, MAX_LEN),
        ({**YARN, "mscale": 1.0, "mscale_all_dim": 0}, MAX_LEN),
        ({**YARN, "factor": 0.5}, MAX_LEN),
        ({**YARN, "rope_theta": 100.0}, MAX_LEN),  # the ramp ends beyond the last pair
        ({**LLAMA3_ROPE, "rope_theta": 5e5, "original_max_position_embeddings": 512}, MAX_LEN),
        ({**LLAMA3_ROPE, "high_freq_factor": 1.0, "factor": 16.0}, MAX_LEN),
        (LONG, 1024),
        (LONG, 1025),
        (LONG, MAX_LEN),
        ({**LONG, "factor": 8.0}, 512),
        ({**LONG, "attention_factor": 1.3}, MAX_LEN),
    ],
)
def test_angles_are_those_of_transformers(parameters: dict[str, Any], served_len: int) -> None:
    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        max_position_embeddings=MAX_LEN,
        rope_parameters=dict(parameters),
    )
    theirs, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](
        config, device="cpu", seq_len=served_len
    )

    rope = parse_rope(all_keys(parameters), HEAD_DIM)

    torch.testing.assert_close(rope.frequencies(served_len), theirs, rtol=2e-6, atol=0)
    assert rope.attention_factor == pytest.approx(factor)


def test_a_part_of_a_head_turns_by_the_angles_of_that_width() -> None:
    parameters = {"rope_theta": 1e4, "partial_rotary_factor": 0.25}
    config = Phi3Config(hidden_size=256, num_attention_heads=4, rope_parameters=dict(parameters))
    theirs, _ = Phi3RotaryEmbedding.compute_default_rope_parameters(config)

    rope = parse_rope(all_keys(parameters), HEAD_DIM, PARTIAL)

    assert rope.rotary_dim == HEAD_DIM // 4
    torch.testing.assert_close(rope.frequencies(MAX_LEN), theirs, rtol=2e-6, atol=0)


@dataclass(frozen=True)
class Served:
    """A tiny model, the length it is served with, and a prompt on that side of its boundary."""

    make: Callable[..., Path]
    options: dict[str, Any]
    max_model_len: int | None = None
    prompt_len: int = 75


TINY_YARN = {**YARN, "original_max_position_embeddings": 32}
TINY_LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.5,
    "short_factor": [1.0, 1.5],
    "long_factor": [2.0, 5.0],
}

CASES = {
    "linear": Served(
        make_llama,
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}},
    ),
    "llama3": Served(make_llama, {"rope_parameters": LLAMA3_ROPE}),
    "yarn": Served(make_llama, {"rope_parameters": TINY_YARN}),
    "dynamic, within its context": Served(make_llama, {"rope_parameters": DYNAMIC}),
    "dynamic, beyond it": Served(
        make_llama, {"rope_parameters": DYNAMIC, "max_position_embeddings": 30}, 75
    ),
    "longrope, short": Served(
        make_phi3, {"rope_parameters": TINY_LONG, "original_max_position_embeddings": 80}, 80
    ),
    "longrope, long": Served(
        make_phi3, {"rope_parameters": TINY_LONG, "original_max_position_embeddings": 20}
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("chunk_len", [1, 7, 75], ids=["tokens", "chunks of 7", "whole"])
def test_logits_are_those_of_transformers(case: Served, chunk_len: int, tmp_path: Path) -> None:
    folder = case.make(tmp_path, **case.options)
    runner = make_runner(folder, max_model_len=case.max_model_len)
    prompt = make_prompt(case.prompt_len)

    logits = logits_in_chunks(runner, prompt, chunk_len)

    ends = [*range(chunk_len - 1, len(prompt) - 1, chunk_len), len(prompt) - 1]
    assert_near(logits, transformers_logits(folder, prompt)[ends])


@pytest.mark.parametrize(
    ("options", "asked", "served"),
    [
        ({}, None, 512),
        ({}, 100, 100),
        ({}, 1000, 512),
        ({"rope_parameters": DYNAMIC}, None, 512),
        ({"rope_parameters": DYNAMIC}, 1000, 1000),
        ({"rope_parameters": DYNAMIC}, 3000, 4 * 512),
        ({"rope_parameters": {**YARN, "original_max_position_embeddings": 256}}, 3000, 1024),
    ],
)
def test_scalings_that_stretch_allow_more_than_was_trained(
    options: dict[str, Any], asked: int | None, served: int, tmp_path: Path
) -> None:
    folder = make_llama(tmp_path, **options)

    assert load_model(folder, max_model_len=asked).info.max_model_len == served


def test_replicas_of_other_angles_do_not_exchange_kv(tmp_path: Path) -> None:
    dynamic = make_llama(tmp_path / "dynamic", rope_parameters=DYNAMIC)
    plain = make_llama(tmp_path / "plain")

    def fingerprints(folder: Path) -> list[bytes]:
        return [
            load_model(folder, max_model_len=served).info.fingerprint
            for served in (400, 512, 600, 700)
        ]

    within, at, beyond, further = fingerprints(dynamic)
    assert within == at
    assert len({at, beyond, further}) == 3
    assert len(set(fingerprints(plain))) == 1
