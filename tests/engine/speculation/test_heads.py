"""Heads of real models draft what the published formulas say, and change no token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import load_file
from tests.engine.model_runs import make_prompt
from tests.engine.models.test_mtp import MAKERS, Reference, with_head
from tests.engine.speculation.handing_over import handed_over
from tests.engine.speculation.headed_engines import Waking
from tests.engine.speculation.reference_heads import (
    MASK_TOKEN,
    NUM_DRAFTED,
    EagleReference,
    make_medusa_heads,
)
from tests.tiny_checkpoints import make_deepseek_v4, make_llama, make_qwen3
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM

from baton.core.errors import BatonError, CheckpointError, InvalidConfig
from baton.core.sampling import SamplingParams
from baton.engine.assemble import assemble_engine, engine_around, load_draft
from baton.engine.checkpoint.load import load_model
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig, SpeculationConfig
from baton.engine.engine import Engine
from baton.engine.passes.runner import ModelRunner
from baton.engine.request.request import Request
from baton.engine.speculation.head_drafter import HeadDrafter
from baton.engine.speculation.speculation import Speculation
from baton.kernels.cpu.library import library

PROMPT = make_prompt(23)
ALMOST_GREEDY = SamplingParams(temperature=1e-4, seed=1, max_tokens=24, ignore_eos=True)
"""A draft of it goes on however unlikely it is."""
WARM = SamplingParams(
    temperature=0.8, top_p=0.95, frequency_penalty=0.5, seed=3, max_tokens=24, ignore_eos=True
)


def make_engine(
    folder: Path, method: Any, heads: Path | None = None, *, async_scheduling: Any = "auto"
) -> Engine:
    loaded = load_model(folder)
    config = EngineConfig(
        scheduler=SchedulerConfig(async_scheduling=async_scheduling),
        cache=CacheConfig(block_size=4, num_blocks=64),
        speculation=SpeculationConfig(
            method=method, model=str(heads or ""), max_tokens=NUM_DRAFTED, adaptive=False
        ),
    )
    draft = load_draft(config.speculation, folder, loaded, "cpu")
    return engine_around(loaded, config, "cpu", draft=draft)


def answer(engine: Engine, sampling: SamplingParams) -> list[int]:
    request = Request("r", PROMPT, sampling=sampling)
    engine.add(request)
    while engine.has_work:
        engine.step()
    return request.output


def first_draft(engine: Engine) -> tuple[list[int], list[int]]:
    """What is known, and what is drafted behind it."""
    request = Request("first", PROMPT, sampling=ALMOST_GREEDY)
    engine.add(request)
    engine.step()
    assert engine.speculation is not None
    (draft,) = engine.speculation.drafter.propose([request], NUM_DRAFTED)
    engine.abort("first")
    return request.tokens, list(draft.tokens)


def chained(
    tokens: list[int],
    hidden: Tensor,
    step: Callable[[list[int], Tensor], Tensor],
    best: Callable[[Tensor], int],
) -> list[int]:
    """`step` gives what the head does of tokens and what stands for hidden states [1, T, D]."""
    behind, drafted = tokens[1:], []
    for _ in range(NUM_DRAFTED):
        out = step(behind, hidden)
        drafted.append(best(out[:, -1]))
        behind, hidden = [*behind, drafted[-1]], torch.cat((hidden, out[:, -1:]), dim=1)
    return drafted


def is_taped(engine: Engine) -> bool:
    assert engine.speculation is not None
    drafter = engine.speculation.drafter
    assert isinstance(drafter, HeadDrafter) and isinstance(engine.runner, ModelRunner)
    return drafter.is_taped and engine.runner.taped is not None


def changes_no_token(plain: Engine, drafting: Engine) -> None:
    for sampling in (ALMOST_GREEDY, WARM):
        assert answer(drafting, sampling) == answer(plain, sampling)
    assert drafting.stats.num_drafted > 20


@pytest.mark.parametrize("make", MAKERS)
@torch.inference_mode()
def test_mtp_drafts_what_its_formulas_say(make: Callable[..., Path], tmp_path: Path) -> None:
    whole, folder = with_head(make, tmp_path)
    engine = make_engine(folder, "mtp")
    assert is_taped(engine) or library() is None
    made = Reference(whole, load_file(folder / "model.safetensors"))

    tokens, drafted = first_draft(engine)

    assert drafted == chained(
        tokens,
        made.hidden(tokens[:-1]),
        lambda behind, hidden: made.outputs(made.pairs(behind, hidden)),
        lambda out: int(made.model.lm_head(out).argmax()),
    )
    changes_no_token(make_engine(folder, "off"), engine)


@pytest.mark.parametrize(("kind", "make"), [(1, make_llama), (3, make_qwen3)])
@torch.inference_mode()
def test_eagle_drafts_what_its_formulas_say(
    kind: Literal[1, 3], make: Callable[..., Path], tmp_path: Path
) -> None:
    target = make(tmp_path / "target")
    made = EagleReference(kind, target, tmp_path / "head")
    engine = make_engine(target, "eagle", tmp_path / "head")
    assert is_taped(engine) or library() is None

    tokens, drafted = first_draft(engine)

    assert drafted == chained(tokens, made.features(tokens[:-1]), made.step, made.best)
    changes_no_token(make_engine(target, "off"), engine)


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("eagle", 3),
        pytest.param("eagle", 1, marks=pytest.mark.wide),
        pytest.param("mtp", 0, marks=pytest.mark.wide),
    ],
)
def test_a_replica_that_drafts_nothing_keeps_what_the_head_of_another_reads(
    method: Any, kind: Any, tmp_path: Path
) -> None:
    heads = tmp_path / "head" if kind else None
    if heads is None:
        _, folder = with_head(MAKERS[0], tmp_path)
    else:
        folder = make_qwen3(tmp_path / "target")
        EagleReference(kind, folder, heads)
    speculation = SpeculationConfig(
        method=method, model=str(heads or ""), max_tokens=NUM_DRAFTED, adaptive=False, features="on"
    )
    config = EngineConfig(
        cache=CacheConfig(block_size=4, num_blocks=64), keeps_features_for=speculation
    )
    drafting = replace(config, speculation=speculation)
    keeper, decode, alone = (assemble_engine(folder, c) for c in (config, drafting, drafting))
    assert keeper.pool.layout == decode.pool.layout
    handed = handed_over(keeper, decode, PROMPT, ALMOST_GREEDY)
    request = Request("alone", PROMPT, sampling=ALMOST_GREEDY)
    alone.add(request)
    while len(request.tokens) < len(handed.tokens):
        alone.step()

    drafts = []
    for engine, asked in ((decode, handed), (alone, request)):
        assert engine.speculation is not None and engine.speculation.reader is not None
        engine.speculation.reader.recall([asked], engine.features)
        (draft,) = engine.speculation.drafter.propose([asked], NUM_DRAFTED)
        drafts.append((asked.tokens, draft.tokens))

    assert drafts[0] == drafts[1]
    assert len(drafts[0][1]) == NUM_DRAFTED
    assert handed.num_draft_missing == keeper.stats.num_drafted == 0


@pytest.mark.parametrize("kind", [1, 3])
def test_who_keeps_features_for_a_head_elsewhere_loads_no_head(
    kind: Literal[1, 3], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, heads = make_llama(tmp_path / "target"), tmp_path / "head"
    EagleReference(kind, folder, heads)
    speculation = SpeculationConfig(method="eagle", model=str(heads), features="on")
    config = EngineConfig(
        cache=CacheConfig(block_size=4, num_blocks=64), keeps_features_for=speculation
    )
    drafting = assemble_engine(folder, replace(config, speculation=speculation))
    monkeypatch.setattr("baton.engine.assemble.load_eagle_head", None)  # an error if it is called

    keeper = assemble_engine(folder, config)

    assert keeper.features is not None
    assert keeper.pool.layout == drafting.pool.layout


@pytest.mark.parametrize("drafts", [True, False])
def test_a_head_of_eagle_3_is_refused_where_a_model_has_several_streams(
    drafts: bool, tmp_path: Path
) -> None:
    folder, heads = make_deepseek_v4(tmp_path / "target"), tmp_path / "head"
    EagleReference(3, make_llama(tmp_path / "another"), heads)
    speculation = SpeculationConfig(method="eagle", model=str(heads), features="on")
    config = EngineConfig(
        cache=CacheConfig(block_size=16, num_blocks=64), keeps_features_for=speculation
    )

    with pytest.raises(InvalidConfig, match="reads one residual stream"):
        assemble_engine(folder, replace(config, speculation=speculation) if drafts else config)


@torch.inference_mode()
def test_p_eagle_drafts_in_one_pass_what_its_formulas_say(tmp_path: Path) -> None:
    target = make_qwen3(tmp_path / "target")
    made = EagleReference(3, target, tmp_path / "head", is_parallel=True)
    engine = make_engine(target, "p-eagle", tmp_path / "head")
    assert is_taped(engine) or library() is None

    tokens, drafted = first_draft(engine)

    masked = made.tensors["mask_hidden"] @ made.tensors["fc.weight"].T
    hidden = torch.cat((made.features(tokens[:-1]), *[masked[None]] * (NUM_DRAFTED - 1)), dim=1)
    out = made.step(tokens[1:] + [MASK_TOKEN] * (NUM_DRAFTED - 1), hidden)
    assert drafted == [made.best(out[:, at]) for at in range(-NUM_DRAFTED, 0)]
    changes_no_token(make_engine(target, "off"), engine)


@torch.inference_mode()
def test_a_head_of_p_eagle_also_drafts_token_by_token(tmp_path: Path) -> None:
    target = make_qwen3(tmp_path / "target")
    made = EagleReference(3, target, tmp_path / "head", is_parallel=True)
    engine = make_engine(target, "eagle", tmp_path / "head")

    tokens, drafted = first_draft(engine)

    assert drafted == chained(tokens, made.features(tokens[:-1]), made.step, made.best)


@pytest.mark.parametrize("has_own_heads", [True, False])
@torch.inference_mode()
def test_medusa_drafts_what_its_formulas_say(has_own_heads: bool, tmp_path: Path) -> None:
    target, folder = make_llama(tmp_path / "target"), tmp_path / "heads"
    tensors = make_medusa_heads(folder, has_own_heads=has_own_heads)
    engine = make_engine(target, "medusa", folder)

    tokens, drafted = first_draft(engine)

    model = AutoModelForCausalLM.from_pretrained(target)
    hidden = model.model(torch.tensor([tokens[:-1]])).last_hidden_state[0, -1]
    expected = []
    for number in range(NUM_DRAFTED):
        weight = tensors[f"{number}.0.linear.weight"]
        x = hidden + functional.silu(weight @ hidden + tensors[f"{number}.0.linear.bias"])
        head = tensors.get(f"{number}.1.weight", model.lm_head.weight)
        expected.append(int((head @ x).argmax()))
    assert drafted == expected
    changes_no_token(make_engine(target, "off"), engine)


def test_a_pass_in_flight_when_a_pause_ends_is_read_first(tmp_path: Path) -> None:
    target = make_llama(tmp_path / "target")
    EagleReference(1, target, tmp_path / "head")
    engine = make_engine(target, "eagle", tmp_path / "head", async_scheduling="on")
    assert engine.speculation is not None
    engine.speculation = Speculation(
        engine.speculation.drafter, Waking(NUM_DRAFTED), reader=engine.speculation.reader
    )
    sampling = replace(ALMOST_GREEDY, max_tokens=60)

    assert answer(engine, sampling) == answer(make_engine(target, "off"), sampling)
    assert engine.stats.num_drafted > 10


def test_while_drafting_is_inactive_passes_are_as_without_a_head(tmp_path: Path) -> None:
    target = make_qwen3(tmp_path / "target")
    EagleReference(3, target, tmp_path / "head")
    engine = make_engine(target, "eagle", tmp_path / "head")
    budget = Waking(NUM_DRAFTED)
    reader = engine.speculation.reader if engine.speculation is not None else None
    assert isinstance(reader, HeadDrafter) and reader.taps is not None
    engine.speculation = Speculation(reader, budget, reader=reader)
    request = Request("r", PROMPT, sampling=replace(ALMOST_GREEDY, max_tokens=60))
    engine.add(request)
    tapped = []
    while engine.has_work:
        is_inactive, reader.taps.found = budget.is_inactive, []
        engine.step()
        tapped.append(is_inactive != bool(reader.taps.found))

    assert all(tapped)
    assert request.output == answer(make_engine(target, "off"), request.sampling)
    assert engine.stats.num_drafted > 10


def test_a_head_of_another_model_is_refused(tmp_path: Path) -> None:
    target = make_llama(tmp_path / "target")
    EagleReference(1, target, tmp_path / "head")
    other = make_llama(tmp_path / "other", hidden_size=64)

    with pytest.raises(CheckpointError, match="head is for a model of width 32"):
        make_engine(other, "eagle", tmp_path / "head")
    with pytest.raises(BatonError, match="no MTP head, which predicts"):
        make_engine(other, "mtp")
    with pytest.raises(CheckpointError, match=r"mask_hidden.*method to eagle"):
        make_engine(target, "p-eagle", tmp_path / "head")
