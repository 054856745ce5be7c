"""`baton trace`: what it shows is what transformers computes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tests.gateway.scripted import eos_token, json_vocab_size, text_tokenizer, tokenizer_json
from tests.tiny_checkpoints import (
    make_deepseek_v3,
    make_deepseek_v32,
    make_falcon,
    make_gemma2,
    make_glm_moe_dsa,
    make_gpt2,
    make_gpt_oss,
    make_llama,
    make_mistral,
    make_mixtral,
    make_qwen3,
)
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner, Result

from baton.engine.checkpoint.load import load_model
from baton.gateway.text.tokenizer import TextTokenizer
from baton.kernels.attention.layer_kv import LayerKv
from baton.kernels.paging.int4_arena import AnyArena
from baton.platform.cli.main import app
from baton.platform.instruments.forward_trace.forward import trace_forward
from baton.platform.instruments.forward_trace.page import page
from baton.platform.instruments.forward_trace.table import show
from baton.platform.instruments.forward_trace.trace import ForwardTrace, Guess, TracedToken
from baton.platform.instruments.pass_cost import Chunk, pass_work, total
from baton.platform.models.model_shape import shape_of

TOKENS = [(7 * place) % 50 + 5 for place in range(21)]
TEXT = "the quick brown fox"


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return text_tokenizer()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_llama(folder, vocab_size=json_vocab_size(), eos_token_id=eos_token())
    (folder / "tokenizer.json").write_text(tokenizer_json())
    return folder


def traced(folder: Path, tokenizer: TextTokenizer) -> ForwardTrace:
    return trace_forward(load_model(folder), tokenizer, TOKENS, name="tiny", device="cpu")


def baton_trace(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["trace", *map(str, arguments)])


@pytest.mark.parametrize(
    "make",
    [
        make_llama,
        make_mistral,
        make_qwen3,
        make_gemma2,
        make_falcon,
        make_gpt2,
        make_mixtral,
        make_gpt_oss,
        make_deepseek_v3,
        make_deepseek_v32,
        make_glm_moe_dsa,
    ],
)
def test_heat_and_guesses_are_those_of_transformers(
    make: Callable[..., Path], tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    folder = make(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    with torch.inference_mode():
        wanted = model(torch.tensor([TOKENS]), output_attentions=True)

    trace = traced(folder, tokenizer)

    assert len(trace.layers) == len(wanted.attentions)
    for layer, weights in zip(trace.layers, wanted.attentions, strict=True):
        torch.testing.assert_close(
            torch.tensor(layer.heat), weights[0, :, -1], rtol=1e-4, atol=1e-5
        )
    best = wanted.logits[0, -1].softmax(-1).topk(5)
    assert [guess.token.token for guess in trace.guesses] == best.indices.tolist()
    probabilities = [guess.probability for guess in trace.guesses]
    assert probabilities == pytest.approx(best.values.tolist(), abs=1e-5)
    assert trace.layers[-1].guesses == trace.guesses  # the lens after the last layer is the model


def test_stages_follow_each_other_and_cost_what_a_pass_costs(
    tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    folder = make_llama(tmp_path)
    loaded = load_model(folder)

    trace = trace_forward(loaded, tokenizer, TOKENS, name="tiny", device="cpu")

    count = len(TOKENS)
    assert [(stage.name, stage.shape_in, stage.shape_out) for stage in trace.stages_of(1)] == [
        ("attention norm", (count, 32), (count, 32)),
        ("qkv", (count, 32), (count, 64)),
        ("RoPE, KV write, attention", (count, 64), (count, 32)),
        ("attention out", (count, 32), (count, 32)),
        ("feed-forward norm", (count, 32), (count, 32)),
        ("gate and up", (count, 32), (count, 48)),
        ("down", (count, 48), (count, 32)),
    ]
    assert [stage.name for stage in trace.stages_of(None)] == ["embedding", "last norm", "head"]
    shape = shape_of(loaded.model, loaded.info.layout(16), loaded.info.dtype)
    whole = total(pass_work(shape, [Chunk(1, token + 1) for token in range(count)]))
    sampled = 96 * count
    of_others = (2 * 32 * 96 + 5 * 32) * (count - 1)  # head and last norm are of one row
    assert trace.work.flops == whole.flops - sampled - of_others


def test_experts_are_those_that_transformers_chooses(
    tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    folder = make_mixtral(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.inference_mode():
        wanted = model(torch.tensor([TOKENS]), output_router_logits=True).router_logits

    trace = traced(folder, tokenizer)

    for layer, logits in zip(trace.layers, wanted, strict=True):
        best = logits.softmax(-1).topk(len(layer.experts[0]))
        shares = best.values / best.values.sum(-1, keepdim=True)
        assert [[expert for expert, _ in chosen] for chosen in layer.experts] == (
            best.indices.tolist()
        )
        found = torch.tensor([[share for _, share in chosen] for chosen in layer.experts])
        torch.testing.assert_close(found, shares, rtol=1e-4, atol=1e-5)
    assert [stage.name for stage in trace.stages_of(0)][-3:] == [
        "feed-forward norm", "router", "experts",
    ]  # fmt: skip


def test_the_command_shows_tokens_stages_layers_and_the_next_token(folder: Path) -> None:
    result = baton_trace(folder, TEXT)

    assert result.exit_code == 0, result.output
    for text in ("quick", "RoPE", "head", "next: "):
        assert text in result.output


def test_json_holds_all_layers_and_heads(folder: Path) -> None:
    found = json.loads(baton_trace(folder, TEXT, "--json").stdout)

    tokens = text_tokenizer().encode(TEXT, add_special_tokens=True)
    assert [token["token"] for token in found["tokens"]] == list(tokens)
    assert [len(layer["heat"]) for layer in found["layers"]] == [4, 4]
    for layer in found["layers"]:
        for head in layer["heat"]:
            assert sum(head) == pytest.approx(1, abs=1e-4)


def test_the_page_stands_alone_and_no_token_can_break_out_of_it(folder: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    model_tokenizer = TextTokenizer((folder / "tokenizer.json").read_text())
    tokens = model_tokenizer.encode(evil, add_special_tokens=False)
    trace = trace_forward(load_model(folder), model_tokenizer, tokens, name=evil, device="cpu")

    text = page(trace)

    assert text.count("</script>") == 1
    assert "<img" not in text
    assert "http" not in text.replace("http-equiv", "")


@pytest.mark.parametrize("is_batch_invariant", [False, True])
def test_what_attends_adds_up_in_one_order_where_the_model_does(
    folder: Path,
    tokenizer: TextTokenizer,
    is_batch_invariant: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bool] = []

    def of(arena: AnyArena, dtype: torch.dtype, *, is_deterministic: bool = False) -> LayerKv:
        asked.append(is_deterministic)
        return honest(arena, dtype)  # which a CPU does in any case

    honest = LayerKv.of
    monkeypatch.setattr(LayerKv, "of", of)
    loaded = replace(load_model(folder), is_deterministic=is_batch_invariant)

    trace_forward(loaded, tokenizer, TOKENS, name="tiny", device="cpu")

    assert set(asked) == {is_batch_invariant}


def test_layers_that_are_alike_are_shown_once_and_the_others_too(
    tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    text = on_terminal(traced(make_deepseek_v3(tmp_path), tokenizer))

    shown = [line.split() for line in text.splitlines()]
    assert ["0", "gate", "and", "up"] in [words[:4] for words in shown]
    assert ["1", "router"] in [words[:2] for words in shown]
    assert "likewise in 1 more" in text


@pytest.mark.parametrize("width", [70, 200])
def test_what_looks_like_markup_is_shown_as_it_is(
    width: int, tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    hostile = TracedToken(7, "[/INST][red]:smile:")
    trace = traced(make_llama(tmp_path), tokenizer)
    layers = [replace(layer, guesses=[Guess(hostile, 0.5)]) for layer in trace.layers]
    trace = replace(
        trace, model="[/b]", tokens=[hostile] * len(trace.tokens), layers=layers,
        guesses=[Guess(hostile, 0.5)],
    )  # fmt: skip

    text = on_terminal(trace, width)

    assert text.startswith("[/b]: Llama")
    assert "next: [/INST][red]:smile: 50%" in text
    rows = text[text.index("logit lens") :].splitlines()
    assert [row.split()[0] for row in rows if row[:2].strip().isdigit()] == ["0", "1"]


def on_terminal(trace: ForwardTrace, width: int = 120) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    show(console, trace, every_layer=False)
    return console.export_text()


def test_what_cannot_be_traced_is_said(folder: Path, tmp_path: Path) -> None:
    too_long = baton_trace(folder, "x" * 5000)
    assert too_long.exit_code == 2
    assert "a trace takes 1 to" in too_long.output

    nowhere = baton_trace(folder, TEXT, "--html", tmp_path / "no" / "page.html")
    assert nowhere.exit_code == 2
    assert "there is no folder" in nowhere.output
