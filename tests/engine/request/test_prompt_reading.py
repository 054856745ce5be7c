"""Embeddings and prompt logprobs equal transformers', however the prompt is scheduled."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny_checkpoints import VOCAB_SIZE, make_llama, transformers_greedy, transformers_logits
from torch import Tensor
from transformers import AutoModelForCausalLM

from baton.core.errors import InvalidRequest, Unavailable
from baton.core.messages import Pooling
from baton.core.sampling import FinishReason, SamplingParams, TokenLogprob
from baton.engine.assemble import assemble_engine
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.engine import Engine
from baton.engine.request import prompt_logprobs
from baton.engine.request.request import Request
from baton.engine.request.step_report import RequestOutput

BLOCK_SIZE = 4
NUM_TOP = 3
OF_HIDDEN = (Pooling.MEAN, Pooling.LAST)
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
WITH_PROMPT = SamplingParams(temperature=0.0, max_tokens=12, num_prompt_logprobs=NUM_TOP)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(4)
    common = [rng.randrange(2, VOCAB_SIZE) for _ in range(12)]
    return [
        common[: 4 * (index % 4)] + [rng.randrange(2, VOCAB_SIZE) for _ in range(1 + 5 * index)]
        for index in range(8)
    ]


@pytest.fixture(scope="module")
def hidden_states(folder: Path, prompts: list[list[int]]) -> list[Tensor]:
    """[T, D] of each prompt, after the last norm."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return [model.model(torch.tensor([prompt])).last_hidden_state[0] for prompt in prompts]


def make_engine(
    folder: Path, *, num_blocks: int = 512, scheduler: SchedulerConfig | None = None
) -> Engine:
    config = EngineConfig(
        cache=CacheConfig(block_size=BLOCK_SIZE, num_blocks=num_blocks),
        scheduler=scheduler or SchedulerConfig(),
    )
    return assemble_engine(folder, config, dtype="float32", device="cpu")


def answer(engine: Engine, requests: Sequence[Request]) -> dict[str, list[RequestOutput]]:
    """The outputs of `requests`, which arrive together, by request."""
    outputs: dict[str, list[RequestOutput]] = {request.request_id: [] for request in requests}
    for request in requests:
        engine.add(request)
    while engine.has_work:
        report = engine.step()
        assert not report.is_stalled
        for output in report.outputs:
            outputs[output.request.request_id].append(output)
    assert engine.pool.num_in_use == 0
    return outputs


def embedding(name: str, prompt: list[int], pooling: Pooling) -> Request:
    return Request(name, prompt, sampling=SamplingParams(max_tokens=1), pooling=pooling)


def assert_is_embedding(outputs: list[RequestOutput], expected: Tensor) -> None:
    (output,) = outputs
    assert (output.tokens, output.finish_reason) == ((), FinishReason.STOP)
    torch.testing.assert_close(torch.tensor(output.embedding), expected, atol=1e-4, rtol=0)


def assert_are_logprobs(found: Sequence[TokenLogprob], folder: Path, prompt: list[int]) -> None:
    """Of all tokens of `prompt` but the first."""
    wanted = transformers_logits(folder, prompt).log_softmax(-1)
    assert [logprob.token for logprob in found] == prompt[1:]
    for place, logprob in enumerate(found):
        assert len(logprob.top) == NUM_TOP
        for token, value in ((logprob.token, logprob.logprob), *logprob.top):
            assert value == pytest.approx(wanted[place, token].item(), abs=1e-4)
        assert logprob.top[0][1] == pytest.approx(wanted[place].max().item(), abs=1e-4)


@pytest.mark.parametrize(
    "scheduler",
    [SchedulerConfig(), SchedulerConfig(prefill_chunk=7), SchedulerConfig(max_batch_tokens=5)],
    ids=["whole", "chunks of 7", "budget of 5"],
)
def test_embeddings_are_those_of_transformers_beside_requests_that_generate(
    folder: Path, prompts: list[list[int]], hidden_states: list[Tensor], scheduler: SchedulerConfig
) -> None:
    engine = make_engine(folder, scheduler=scheduler)
    generating = [
        Request(f"generate {index}", prompt, sampling=GREEDY)
        for index, prompt in enumerate(prompts)
    ]
    embedded = [
        embedding(f"{pooling} {index}", prompt, pooling)
        for index, prompt in enumerate(prompts)
        for pooling in OF_HIDDEN
    ]

    mixed = [
        r for three in zip(generating, embedded[::2], embedded[1::2], strict=True) for r in three
    ]
    outputs = answer(engine, mixed)

    for index, hidden in enumerate(hidden_states):
        assert_is_embedding(outputs[f"mean {index}"], hidden.mean(0))
        assert_is_embedding(outputs[f"last {index}"], hidden[-1])
    expected = transformers_greedy(folder, prompts, GREEDY.max_tokens)
    assert [request.output for request in generating] == expected


def test_the_mean_takes_no_token_from_the_prefix_cache_and_the_last_does(
    folder: Path, prompts: list[list[int]], hidden_states: list[Tensor]
) -> None:
    engine, prompt, hidden = make_engine(folder), prompts[-1], hidden_states[-1]
    answer(engine, [Request("before", prompt, sampling=GREEDY)])
    mean, last = embedding("mean", prompt, Pooling.MEAN), embedding("last", prompt, Pooling.LAST)

    outputs = answer(engine, [mean]) | answer(engine, [last])

    assert (mean.num_cached, last.num_cached) == (0, (len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE)
    assert_is_embedding(outputs["mean"], hidden.mean(0))
    assert_is_embedding(outputs["last"], hidden[-1])


def test_what_an_embedding_computed_is_found_by_others(
    folder: Path, prompts: list[list[int]]
) -> None:
    engine, prompt = make_engine(folder), prompts[-1]
    answer(engine, [embedding("mean", prompt, Pooling.MEAN)])
    request = Request("after", prompt, sampling=GREEDY)

    answer(engine, [request])

    assert request.num_cached == (len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE


@pytest.mark.parametrize("pooling", OF_HIDDEN)
def test_a_preempted_prompt_is_embedded_from_its_first_token_on(
    folder: Path, prompts: list[list[int]], hidden_states: list[Tensor], pooling: Pooling
) -> None:
    """The elder generates, and needs the blocks of a prompt that is half read."""
    engine = make_engine(folder, num_blocks=13, scheduler=SchedulerConfig(prefill_chunk=2))
    elder = Request(
        "elder",
        prompts[0] * 3,
        sampling=SamplingParams(temperature=0, max_tokens=16, ignore_eos=True),
    )
    request = embedding("embedded", prompts[7], pooling)

    outputs = answer(engine, [elder, request])

    assert request.num_preemptions > 0
    assert_is_embedding(
        outputs["embedded"],
        hidden_states[7].mean(0) if pooling is Pooling.MEAN else hidden_states[7][-1],
    )


def test_a_prompt_to_embed_may_fill_the_context_and_no_more(folder: Path) -> None:
    engine = make_engine(folder, num_blocks=4)

    answer(engine, [embedding("full", [5] * 16, Pooling.MEAN)])

    with pytest.raises(InvalidRequest, match="more than the 16 served here") as refusal:
        engine.add(embedding("too long", [5] * 17, Pooling.MEAN))
    assert refusal.value.field == "prompt"


@pytest.mark.parametrize(
    ("scheduler", "num_blocks", "max_logits"),
    [
        pytest.param(SchedulerConfig(), 512, None, id="whole"),
        pytest.param(SchedulerConfig(prefill_chunk=7), 512, None, id="chunks of 7"),
        pytest.param(SchedulerConfig(), 512, 2 * VOCAB_SIZE + 1, id="two rows of logits at a time"),
        pytest.param(SchedulerConfig(prefill_chunk=5), 16, None, id="preempted"),
    ],
)
def test_prompt_logprobs_are_those_of_transformers(
    folder: Path,
    prompts: list[list[int]],
    scheduler: SchedulerConfig,
    num_blocks: int,
    max_logits: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if max_logits is not None:
        monkeypatch.setattr(prompt_logprobs, "MAX_LOGITS", max_logits)
    engine = make_engine(folder, num_blocks=num_blocks, scheduler=scheduler)
    answer(engine, [Request("before", prompts[-1], sampling=GREEDY)])
    requests = [
        Request(str(index), prompt, sampling=GREEDY if index % 3 == 2 else WITH_PROMPT)
        for index, prompt in enumerate(prompts)
    ]

    outputs = answer(engine, requests)

    assert (engine.stats.num_preempted > 0) == (num_blocks == 16)
    expected = transformers_greedy(folder, prompts, GREEDY.max_tokens)
    assert [request.output for request in requests] == expected
    for index, prompt in enumerate(prompts):
        first, *later = outputs[str(index)]
        if index % 3 == 2:
            assert first.prompt_logprobs == ()
        else:
            assert_are_logprobs(first.prompt_logprobs, folder, prompt)
        assert not any(output.prompt_logprobs for output in later)


def test_no_more_logits_of_a_prompt_exist_at_once_than_allowed(
    folder: Path, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_logprobs, "MAX_LOGITS", 4 * VOCAB_SIZE)
    engine = make_engine(folder)
    nums_rows: list[int] = []
    compute = engine.runner.logits

    def count(hidden: Tensor) -> Tensor:
        nums_rows.append(len(hidden))
        return compute(hidden)

    monkeypatch.setattr(engine.runner, "logits", count)

    answer(engine, [Request("long", prompts[-1], sampling=WITH_PROMPT)])

    assert max(nums_rows) == 4


def test_a_request_preempted_behind_its_first_token_does_not_read_its_prompt_again(
    folder: Path, prompts: list[list[int]]
) -> None:
    engine = make_engine(folder, num_blocks=16)
    sampling = SamplingParams(temperature=0, max_tokens=24, num_prompt_logprobs=0, ignore_eos=True)
    elder = Request("elder", prompts[3], sampling=sampling)
    younger = Request("younger", prompts[2], sampling=sampling)

    outputs = answer(engine, [elder, younger])

    assert younger.num_preemptions > 0
    given = [output for output in outputs["younger"] if output.prompt_logprobs]
    assert given == outputs["younger"][:1]


def test_a_continuation_has_given_its_prompts_logprobs_before(
    folder: Path, prompts: list[list[int]]
) -> None:
    engine, prompt = make_engine(folder), prompts[3]
    [first] = transformers_greedy(folder, [prompt], 1)
    request = Request("r", prompt, output=first, sampling=WITH_PROMPT)

    outputs = answer(engine, [request])

    assert not any(output.prompt_logprobs for output in outputs["r"])


def test_what_is_read_of_a_prompt_and_is_not_finite_fails_the_request(
    folder: Path, prompts: list[list[int]]
) -> None:
    engine, prompt = make_engine(folder), prompts[5]
    honest = engine.runner.forward

    def spoil_one_row(*pass_: object) -> Tensor:
        hidden = honest(*pass_).clone()  # type: ignore[arg-type]
        hidden[1] = torch.nan
        return hidden

    engine.runner.forward = spoil_one_row  # type: ignore[method-assign, assignment]
    for request in (
        embedding("mean", prompt, Pooling.MEAN),
        Request("logprobs", prompt, sampling=WITH_PROMPT),
    ):
        (output,) = answer(engine, [request])[request.request_id]

        assert isinstance(output.error, Unavailable)
        assert "not finite" in str(output.error)
    again = Request("again", prompt, sampling=GREEDY)
    engine.runner.forward = honest  # type: ignore[method-assign]
    answer(engine, [again])
    assert again.num_cached == 0
