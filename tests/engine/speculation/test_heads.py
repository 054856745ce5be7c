"""Heads of real models draft what the published formulas say, and change no token."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.model_runs import make_prompt
from tests.engine.models.test_mtp import MAKERS, Reference, with_head
from tests.engine.speculation.handing_over import handed_over
from tests.tiny_checkpoints import TINY, VOCAB_SIZE, make_deepseek_v4, make_llama, make_qwen3
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from baton.core.errors import BatonError, CheckpointError, InvalidConfig
from baton.core.sampling import SamplingParams
from baton.engine.assemble import assemble_engine, engine_around, load_draft
from baton.engine.checkpoint.load import load_model
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig, SpeculationConfig
from baton.engine.engine import Engine
from baton.engine.passes.runner import ModelRunner
from baton.engine.request.request import Request
from baton.engine.request.step_report import StepReport
from baton.engine.speculation.draft_budget import FixedBudget
from baton.engine.speculation.head_drafter import HeadDrafter
from baton.engine.speculation.speculation import Speculation
from baton.kernels.cpu.library import library

PROMPT = make_prompt(23)
ALMOST_GREEDY = SamplingParams(temperature=1e-4, seed=1, max_tokens=24, ignore_eos=True)
"""A draft of it goes on however unlikely it is."""
WARM = SamplingParams(
    temperature=0.8, top_p=0.95, frequency_penalty=0.5, seed=3, max_tokens=24, ignore_eos=True
)
NUM_DRAFTED = 3


def make_engine(
    folder: Path, method: Any, heads: Path | None = None, *, step_ahead: Any = "auto"
) -> Engine:
    loaded = load_model(folder)
    config = EngineConfig(
        scheduler=SchedulerConfig(step_ahead=step_ahead),
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


NUM_IDS = 40
MASK_TOKEN = 9


class EagleReference:
    """A head of either kind of random weights, out of the parts that transformers has."""

    def __init__(
        self, kind: Literal[1, 3], target: Path, folder: Path, *, is_parallel: bool = False
    ) -> None:
        """`is_parallel`: with a second layer and with what masks are, as P-EAGLE has them."""
        torch.manual_seed(5)
        self.kind = kind
        self.model = AutoModelForCausalLM.from_pretrained(target)
        config = LlamaConfig(**{**TINY, "num_hidden_layers": 1})
        config._attn_implementation = "eager"
        width = config.hidden_size
        self.layer = LlamaDecoderLayer(config, 0)
        self.rotary = LlamaRotaryEmbedding(config)
        self.tensors: dict[str, Tensor] = {}
        for name, weight in self.layer.named_parameters():
            is_wide = kind == 3 and any(f"{part}_proj" in name for part in "qkv")
            shape = (len(weight), 2 * width) if is_wide else weight.shape
            weight.data = torch.rand(shape) + 0.5 if weight.dim() == 1 else torch.randn(shape) / 5
            self.tensors[f"layers.0.{name}"] = weight.data
        num_inputs = 2 if kind == 1 else 3
        self.tensors["fc.weight"] = torch.randn(width, num_inputs * width) / 4
        if kind == 1:
            setattr(self.layer, "input_layernorm", torch.nn.Identity())  # noqa: B010
            del self.tensors["layers.0.input_layernorm.weight"]
            self.tensors["fc.bias"] = torch.randn(width)
        else:
            self.tensors = {
                name.replace("layers.0.", "midlayer."): weight
                for name, weight in self.tensors.items()
            }
            self.tensors["midlayer.hidden_norm.weight"] = torch.rand(width) + 0.5
            self.tensors["norm.weight"] = torch.rand(width) + 0.5
            self.tensors["lm_head.weight"] = torch.randn(NUM_IDS, width)
            self.ids = torch.randperm(VOCAB_SIZE)[:NUM_IDS].sort().values
            self.tensors["d2t"] = self.ids - torch.arange(NUM_IDS)
            self.tensors["t2d"] = torch.zeros(VOCAB_SIZE, dtype=torch.bool)
        self.second: LlamaDecoderLayer | None = None
        raw = {**config.to_dict(), "architectures": ["LlamaForCausalLM"]}
        if is_parallel:
            self.second = LlamaDecoderLayer(config, 0)
            for name, weight in self.second.named_parameters():
                weight.data = torch.rand(len(weight)) + 0.5 if weight.dim() == 1 else weight.data
                self.tensors[f"layers.1.{name}"] = weight.data
            self.tensors["mask_hidden"] = torch.randn(1, 3 * width)
            raw |= {"num_hidden_layers": 2, "ptd_token_id": MASK_TOKEN}
        folder.mkdir()
        save_file(self.tensors, folder / "model.safetensors", metadata={"format": "pt"})
        raw["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [0, 1, 1]}
        (folder / "config.json").write_text(json.dumps(raw))

    def features(self, tokens: list[int]) -> Tensor:
        found = self.model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        if self.kind == 1:
            last: Tensor = found[-1]
            return last
        return torch.cat((found[0], found[1], found[1]), dim=-1) @ self.tensors["fc.weight"].T

    def step(self, behind: list[int], hidden: Tensor) -> Tensor:
        embedded = self.model.model.embed_tokens(torch.tensor([behind]))
        positions = self.rotary(hidden, torch.arange(len(behind)).unsqueeze(0))
        mask = torch.full((len(behind), len(behind)), -torch.inf).triu(1)[None, None]
        inputs = {"position_embeddings": positions, "attention_mask": mask}
        if self.kind == 1:
            both = torch.cat((embedded, hidden), dim=-1)
            x = functional.linear(both, self.tensors["fc.weight"], self.tensors["fc.bias"])
            found = self.layer(x, **inputs)
            out: Tensor = found[0] if isinstance(found, tuple) else found
            return out
        normed = self._normed(hidden, "midlayer.hidden_norm")
        both = torch.cat((self.layer.input_layernorm(embedded), normed), dim=-1)
        x = hidden + self.layer.self_attn(hidden_states=both, **inputs)[0]
        mixed: Tensor = x + self.layer.mlp(self.layer.post_attention_layernorm(x))
        if self.second is None:
            return mixed
        found = self.second(mixed, **inputs)
        last: Tensor = found[0] if isinstance(found, tuple) else found
        return last

    def best(self, out: Tensor) -> int:
        if self.kind == 1:
            return int(self.model.lm_head(out).argmax())
        logits = self._normed(out, "norm") @ self.tensors["lm_head.weight"].T
        return int(self.ids[logits.argmax()])

    def _normed(self, x: Tensor, name: str) -> Tensor:
        weight = self.tensors[f"{name}.weight"]
        return functional.rms_norm(x, weight.shape, weight, self.model.config.rms_norm_eps)


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


def make_medusa_heads(folder: Path, *, has_own_heads: bool) -> dict[str, Tensor]:
    """Random ones."""
    torch.manual_seed(7)
    width = TINY["hidden_size"]
    tensors: dict[str, Tensor] = {}
    for number in range(NUM_DRAFTED):
        tensors[f"{number}.0.linear.weight"] = torch.randn(width, width) / 2
        tensors[f"{number}.0.linear.bias"] = torch.randn(width)
        if has_own_heads:
            tensors[f"{number}.1.weight"] = torch.randn(VOCAB_SIZE, width)
    folder.mkdir()
    torch.save(tensors, folder / "medusa_lm_head.pt")
    (folder / "config.json").write_text(
        json.dumps({"medusa_num_heads": NUM_DRAFTED, "medusa_num_layers": 1})
    )
    return tensors


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


class Waking(FixedBudget):
    """Drafts in every third six steps, and rests deeply in the others."""

    num_steps = 0

    @property
    def is_paused(self) -> bool:  # type: ignore[override]
        return self.num_steps % 18 < 12

    is_pause_deep = is_paused

    def begins(self, num_running: int) -> bool:
        return not self.is_paused

    def learn(self, report: StepReport, seconds: float) -> None:
        self.num_steps += 1


def test_a_pass_in_flight_when_a_rest_ends_is_read_first(tmp_path: Path) -> None:
    target = make_llama(tmp_path / "target")
    EagleReference(1, target, tmp_path / "head")
    engine = make_engine(target, "eagle", tmp_path / "head", step_ahead="on")
    assert engine.speculation is not None
    engine.speculation = Speculation(
        engine.speculation.drafter, Waking(NUM_DRAFTED), reader=engine.speculation.reader
    )
    sampling = replace(ALMOST_GREEDY, max_tokens=60)

    assert answer(engine, sampling) == answer(make_engine(target, "off"), sampling)
    assert engine.stats.num_drafted > 10


def test_deep_in_a_rest_passes_are_as_without_a_head(tmp_path: Path) -> None:
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
        rests, reader.taps.found = budget.is_pause_deep, []
        engine.step()
        tapped.append(rests != bool(reader.taps.found))

    assert all(tapped)
    assert request.output == answer(make_engine(target, "off"), request.sampling)
    assert engine.stats.num_drafted > 10


def test_a_head_of_another_model_is_refused(tmp_path: Path) -> None:
    target = make_llama(tmp_path / "target")
    EagleReference(1, target, tmp_path / "head")
    other = make_llama(tmp_path / "other", hidden_size=64)

    with pytest.raises(CheckpointError, match="head for a model of width 32"):
        make_engine(other, "eagle", tmp_path / "head")
    with pytest.raises(BatonError, match="no head that predicts"):
        make_engine(other, "mtp")
    with pytest.raises(CheckpointError, match=r"mask_hidden.*method to eagle"):
        make_engine(target, "p-eagle", tmp_path / "head")
