"""What an engine can do on one rank it can do on several, with the same numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.rank_processes import RankProcesses, engine_on_ranks
from tests.far_apart import with_wide
from tests.tiny_checkpoints import make_deepseek_v3, make_llama
from tests.tiny_classifiers import as_classifier, transformers_label_logits

from baton.core.messages import Pooling
from baton.core.sampling import SamplingParams
from baton.engine.assemble import assemble_engine
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig, SpeculationConfig
from baton.engine.engine import Engine
from baton.engine.mesh.mesh import Mesh
from baton.engine.request.request import Request
from baton.platform.replica.engine_facts import engine_facts

CONFIG = EngineConfig(
    cache=CacheConfig(block_size=4, num_blocks=64),
    scheduler=SchedulerConfig(prefill_chunk=7, max_batch_tokens=64),
)
NARROW_KV = replace(CONFIG, cache=replace(CONFIG.cache, kv_dtype="int8"))
INT4_KV = replace(CONFIG, cache=replace(CONFIG.cache, kv_dtype="int4"))
ASYNC = replace(CONFIG, scheduler=replace(CONFIG.scheduler, async_scheduling="on"))
IN_PIECES = replace(CONFIG, scheduler=replace(CONFIG.scheduler, micro_batch_tokens=3))
TWO, STAGES, STAGES_OF_TWO = Mesh(tensor=2), Mesh(pipeline=2), Mesh(tensor=2, pipeline=2)
PROMPTS = [[(7 * place + start) % 60 + 3 for place in range(3 + 9 * start)] for start in range(4)]
SAMPLINGS = (
    SamplingParams(temperature=0.0, max_tokens=9, num_logprobs=3, num_prompt_logprobs=2),
    SamplingParams(temperature=0.9, seed=3, max_tokens=9, ignore_eos=True),
    SamplingParams(temperature=0.7, seed=5, max_tokens=6, frequency_penalty=0.8, top_p=0.9),
)


@dataclass
class Told:
    """Of one request."""

    tokens: list[int] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)
    """Logprobs of its tokens and of its prompt, or an embedding."""


def some_requests() -> list[Request]:
    requests = [
        Request(f"{number}-{place}", prompt, sampling=sampling)
        for number, sampling in enumerate(SAMPLINGS)
        for place, prompt in enumerate(PROMPTS)
    ]
    mean = Request("mean", PROMPTS[2], sampling=SAMPLINGS[0], pooling=Pooling.MEAN)
    return [*requests, mean]


def told(engine: Engine) -> dict[str, Told]:
    """Everything that clients are told."""
    found: dict[str, Told] = defaultdict(Told)
    for request in some_requests():
        engine.add(request)
    while engine.has_work:
        for output in engine.step().outputs:
            one = found[output.request.request_id]
            one.tokens += output.tokens
            one.numbers += [each.logprob for each in (*output.prompt_logprobs, *output.logprobs)]
            one.numbers += output.embedding
    return found


CASES: dict[str, tuple[Callable[[Path], Path], EngineConfig, Mesh]] = {
    "llama on two": (make_llama, CONFIG, TWO),
    "llama on two, async": (make_llama, ASYNC, TWO),
    "llama in two stages": (make_llama, IN_PIECES, STAGES),
    "deepseek v3 on two": (make_deepseek_v3, CONFIG, TWO),
    "deepseek v3 on two, async": (make_deepseek_v3, ASYNC, TWO),
    "deepseek v3, two stages of two": (make_deepseek_v3, IN_PIECES, STAGES_OF_TWO),
}


FAR_APART = {"llama on two, async", "llama in two stages", "deepseek v3 on two"}


@pytest.mark.parametrize("case", with_wide(CASES, FAR_APART))
def test_clients_are_told_the_same(case: str, ranks: RankProcesses, tmp_path: Path) -> None:
    make, config, mesh = CASES[case]
    folder = make(tmp_path)
    expected = told(assemble_engine(folder, config, dtype="float32", device="cpu"))

    with engine_on_ranks(ranks, folder, config, mesh, dtype="float32") as (engine, _):
        found = told(engine)
        assert engine.pool.num_in_use == 0

    assert found.keys() == expected.keys()
    for name, one in expected.items():
        assert found[name].tokens == one.tokens, name
        assert found[name].numbers == pytest.approx(one.numbers, abs=1e-4), name


@pytest.mark.wide
@pytest.mark.parametrize("mesh", [TWO, STAGES, STAGES_OF_TWO], ids=str)
def test_labels_are_those_of_transformers(mesh: Mesh, ranks: RankProcesses, tmp_path: Path) -> None:
    """Every rank has all of the head for them, or those of the last stage."""
    folder = as_classifier(make_llama(tmp_path))
    found = {}
    with engine_on_ranks(ranks, folder, CONFIG, mesh, dtype="float32") as (engine, _):
        for name, prompt in enumerate(PROMPTS):
            sampling = SamplingParams(max_tokens=1)
            engine.add(Request(str(name), prompt, sampling=sampling, pooling=Pooling.LOGITS))
        while engine.has_work:
            for output in engine.step().outputs:
                found[output.request.request_id] = output.embedding

    for name, wanted in enumerate(transformers_label_logits(folder, PROMPTS)):
        assert found[str(name)] == pytest.approx(wanted.tolist(), abs=1e-4)


@pytest.mark.parametrize(
    ("make", "mesh"),
    [
        (make_llama, TWO),
        (make_llama, Mesh(tensor=4)),
        (make_llama, STAGES_OF_TWO),
        (make_deepseek_v3, TWO),
        (make_deepseek_v3, STAGES),
    ],
)
def test_the_kv_that_peers_are_given_is_that_of_one_rank(
    make: Callable[[Path], Path], mesh: Mesh, ranks: RankProcesses, tmp_path: Path
) -> None:
    folder = make(tmp_path)
    alone = assemble_engine(folder, CONFIG, dtype="float32", device="cpu")
    prompt_logprobs(alone)

    with engine_on_ranks(ranks, folder, CONFIG, mesh, dtype="float32") as (engine, _):
        prompt_logprobs(engine)
        torch.testing.assert_close(kv_of(engine), kv_of(alone), rtol=1e-4, atol=1e-5)


def kv_of(engine: Engine) -> torch.Tensor:
    """All that lies in its cache, in the order of bytes that is sent."""
    cache = engine.runner.cache
    views = [
        torch.frombuffer(bytearray(cache.view(block, layer)), dtype=torch.float32)
        for block in range(cache.num_blocks)
        for layer in range(cache.layout.num_layers)
    ]
    return torch.stack(views)


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (NARROW_KV, {"dtype": "float32"}),
        (INT4_KV, {"dtype": "float32"}),
        (CONFIG, {"dtype": "bfloat16", "quantize": "int8"}),
    ],
    ids=["int8 KV", "int4 KV", "int8 weights"],
)
def test_what_is_rounded_is_rounded_as_finely_on_each_rank(
    config: EngineConfig, options: dict[str, Any], ranks: RankProcesses, tmp_path: Path
) -> None:
    folder = make_llama(tmp_path, hidden_size=64, intermediate_size=128)
    exact, rounded = (
        prompt_logprobs(assemble_engine(folder, each, device="cpu", **how))
        for each, how in ((CONFIG, {"dtype": "float32"}), (config, options))
    )

    with engine_on_ranks(ranks, folder, config, Mesh(tensor=2), **options) as (engine, _):
        found = prompt_logprobs(engine)

    error, usual = (found - exact).abs().mean(), (rounded - exact).abs().mean()
    assert 0 < error < 1.5 * usual


def prompt_logprobs(engine: Engine) -> torch.Tensor:
    sampling = SamplingParams(max_tokens=1, num_prompt_logprobs=0)
    engine.add(Request("one", PROMPTS[-1], sampling=sampling))
    found: list[float] = []
    while engine.has_work:
        for output in engine.step().outputs:
            found += [each.logprob for each in output.prompt_logprobs]
    return torch.tensor(found)


def test_an_engine_says_on_how_many_ranks_it_is(ranks: RankProcesses, tmp_path: Path) -> None:
    folder = make_llama(tmp_path)
    alone = assemble_engine(folder, CONFIG, dtype="float32", device="cpu")
    with engine_on_ranks(ranks, folder, CONFIG, Mesh(tensor=2), dtype="float32") as (engine, _):
        facts = engine_facts("tiny", engine)

    assert (facts.num_ranks, facts.passes) == (2, "model")
    assert engine_facts("tiny", alone).num_ranks == 1


REPETITIVE = [[(7 * place) % period + 3 for place in range(14 + period)] for period in (3, 5, 40)]
REPEATING = (
    SamplingParams(
        temperature=0.0,
        max_tokens=24,
        ignore_eos=True,
        logit_bias=((11, 50.0), (12, 50.0), (13, 50.0)),
    ),
    SamplingParams(
        temperature=0.9, top_p=0.9, frequency_penalty=0.1, seed=3, max_tokens=24, ignore_eos=True
    ),
)
"""Outputs of few tokens repeat themselves, and methods that look texts up find them."""


def repeated(engine: Engine) -> list[list[int]]:
    requests = [
        Request(f"{number}-{place}", prompt, sampling=sampling)
        for number, sampling in enumerate(REPEATING)
        for place, prompt in enumerate(REPETITIVE)
    ]
    for request in requests:
        engine.add(request)
    while engine.has_work:
        engine.step()
    return [request.output for request in requests]


DRAFTING = {
    f"{method} on {name}": (method, mesh)
    for method in ("suffix", "ngram", "lookahead", "draft")
    for name, mesh in (("two", TWO), ("two stages", STAGES), ("two stages of two", STAGES_OF_TWO))
}


@pytest.mark.parametrize("case", with_wide(DRAFTING, {"suffix on two", "draft on two stages"}))
def test_what_is_drafted_is_verified_as_on_one(
    case: str, ranks: RankProcesses, tmp_path: Path
) -> None:
    method, mesh = DRAFTING[case]
    folder, small = make_llama(tmp_path / "large"), make_llama(tmp_path / "small", seed=1)
    speculation = SpeculationConfig(
        method=method,  # type: ignore[arg-type]
        model=str(small) if method == "draft" else "",
        max_tokens=4,
        adaptive=False,
    )
    config = replace(CONFIG, speculation=speculation)
    expected = repeated(assemble_engine(folder, CONFIG, dtype="float32", device="cpu"))

    with engine_on_ranks(ranks, folder, config, mesh, dtype="float32") as (engine, _):
        assert repeated(engine) == expected
        assert engine.stats.num_drafted > engine.stats.num_accepted > 0
        assert engine.pool.num_in_use == 0
