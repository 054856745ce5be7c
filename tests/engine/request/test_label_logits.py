"""Logits of labels, and of some tokens, equal transformers', however the prompt is scheduled."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests import tiny_checkpoints
from tests.engine.request.test_prompt_reading import (
    BLOCK_SIZE,
    GREEDY,
    answer,
    embedding,
    make_engine,
)
from tests.tiny_checkpoints import VOCAB_SIZE, make_llama, make_qwen3, transformers_logits
from tests.tiny_classifiers import as_classifier, transformers_label_logits

from baton.core.errors import CheckpointError, InvalidRequest
from baton.core.messages import Pooling
from baton.core.sampling import FinishReason, SamplingParams
from baton.engine.assemble import assemble_engine
from baton.engine.checkpoint.load import check_model
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.request.request import Request

RNG = random.Random(11)
COMMON = [RNG.randrange(2, VOCAB_SIZE) for _ in range(13)]
PROMPTS = [
    COMMON[: 5 * (i % 3)] + [RNG.randrange(2, VOCAB_SIZE) for _ in range(1 + 6 * i)]
    for i in range(6)
]

FAMILIES = {
    "Qwen3": make_qwen3,
    **{
        name: getattr(tiny_checkpoints, f"make_{name}")
        for name in (
            "llama", "mistral", "qwen2", "gemma2", "gemma3", "phi3", "gpt2", "falcon", "mixtral",
            "qwen2_moe", "qwen3_moe", "gpt_oss", "deepseek_v2", "deepseek_v3",
        )
    },
}  # fmt: skip
FAST = ("Qwen3", "llama")


def label_logits(name: str, prompt: list[int], tokens: tuple[int, ...] = ()) -> Request:
    sampling = SamplingParams(max_tokens=1, allowed_token_ids=tokens)
    return Request(name, prompt, sampling=sampling, pooling=Pooling.LOGITS)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=name, marks=[] if name in FAST else [pytest.mark.wide])
        for name, make in FAMILIES.items()
    ],
)
def test_logits_of_labels_are_those_of_transformers(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    """Whole, in chunks, and behind prefixes that are cached."""
    folder = as_classifier(make(tmp_path))
    check_model(folder)
    wanted = transformers_label_logits(folder, PROMPTS)
    for scheduler in SchedulerConfig(), SchedulerConfig(prefill_chunk=7, max_batch_tokens=11):
        engine = make_engine(folder, scheduler=scheduler)
        assert engine.info.num_labels == len(wanted[0])
        for round_number in range(2):
            requests = [label_logits(str(i), prompt) for i, prompt in enumerate(PROMPTS)]
            outputs = answer(engine, requests)
            for i, expected in enumerate(wanted):
                (output,) = outputs[str(i)]
                assert output.finish_reason is FinishReason.STOP
                found = torch.tensor(output.embedding)
                torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
            num_cached = [request.num_cached for request in requests]
            longest = (len(PROMPTS[-1]) - 1) // BLOCK_SIZE * BLOCK_SIZE
            assert round_number == 0 or num_cached[-1] == longest


def test_logits_of_some_tokens_are_those_of_transformers(tmp_path: Path) -> None:
    folder = make_llama(tmp_path)
    engine = make_engine(folder)
    outputs = answer(engine, [label_logits("yes or no", PROMPTS[-1], (40, 7))])

    (output,) = outputs["yes or no"]
    wanted = transformers_logits(folder, PROMPTS[-1])[-1, [40, 7]]
    torch.testing.assert_close(torch.tensor(output.embedding), wanted, atol=1e-4, rtol=0)


def test_the_head_for_labels_is_not_quantised(tmp_path: Path) -> None:
    folder = as_classifier(make_llama(tmp_path))
    config = EngineConfig(cache=CacheConfig(block_size=BLOCK_SIZE, num_blocks=64))
    engine = assemble_engine(folder, config, dtype="float32", device="cpu", quantize="int8")
    hidden = embedding("hidden", PROMPTS[2], Pooling.LAST)
    outputs = answer(engine, [label_logits("labels", PROMPTS[2]), hidden])

    score = load_file(folder / "model.safetensors")["score.weight"]
    expected = score @ torch.tensor(outputs["hidden"][0].embedding)
    found = torch.tensor(outputs["labels"][0].embedding)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_what_a_model_cannot_give_is_refused(tmp_path: Path) -> None:
    generator = make_engine(make_llama(tmp_path / "generator"))
    classifier = make_engine(as_classifier(make_llama(tmp_path / "classifier")))

    with pytest.raises(InvalidRequest, match="is not a classifier; list the tokens"):
        generator.add(label_logits("all", [3]))
    with pytest.raises(InvalidRequest, match=r"logits outside 0\.\.95"):
        generator.add(label_logits("too high", [3], (VOCAB_SIZE,)))
    with pytest.raises(InvalidRequest, match=r"logits outside 0\.\.2"):
        classifier.add(label_logits("too high", [3], (3,)))
    with pytest.raises(InvalidRequest, match=r"a classifier .* to generate tokens"):
        classifier.add(Request("text", [3], sampling=GREEDY))


def test_labels_without_a_head_for_them_are_no_model(tmp_path: Path) -> None:
    folder = as_classifier(make_llama(tmp_path))
    path = folder / "config.json"
    text = path.read_text()

    path.write_text(text.replace('"2": "good"', '"2": "good", "3": "best"'))
    with pytest.raises(CheckpointError, match=r"score.weight is \[3, 32\], not \[4, 32\]"):
        check_model(folder)
    path.write_text(text.replace('"2": "good"', '"7": "good"'))
    with pytest.raises(CheckpointError, match="id2label"):
        check_model(folder)
    path.write_text(text.replace("LlamaForSequence", "LlamaFroSequence"))
    with pytest.raises(CheckpointError, match="did you mean LlamaForSequenceClassification"):
        check_model(folder)
