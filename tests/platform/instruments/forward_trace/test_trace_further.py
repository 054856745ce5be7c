"""`baton trace --mtp`: what comes after the next token, by the head that predicts it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from tests.engine.models.test_mtp import reference, with_head
from tests.gateway.scripted import eos_token, json_vocab_size, text_tokenizer, tokenizer_json
from tests.platform.instruments.forward_trace.test_forward_trace import TEXT, TOKENS, baton_trace
from tests.tiny_checkpoints import make_deepseek_v32, make_llama

from baton.engine.checkpoint.load import load_model
from baton.engine.checkpoint.load_heads import load_mtp_head
from baton.platform.instruments.forward_trace.forward import trace_forward
from baton.platform.instruments.forward_trace.page import page
from baton.platform.instruments.forward_trace.table import show


def test_the_token_after_the_likeliest_next_one_is_shown(tmp_path: Path) -> None:
    whole, folder = with_head(make_deepseek_v32, tmp_path)
    loaded = load_model(folder)
    head = load_mtp_head(folder, loaded, device="cpu")

    trace = trace_forward(loaded, text_tokenizer(), TOKENS, name="tiny", device="cpu", mtp=head)

    tokens = [*TOKENS, trace.guesses[0].token.token]
    logits = reference(whole, load_file(folder / "model.safetensors"), tokens)
    best = logits[-1].softmax(-1).topk(5)
    assert [guess.token.token for guess in trace.guesses_after] == best.indices.tolist()
    found = torch.tensor([guess.probability for guess in trace.guesses_after])
    torch.testing.assert_close(found, best.values, rtol=0, atol=1e-5)
    console = Console(file=io.StringIO(), width=120)
    show(console, trace, every_layer=False)
    assert isinstance(console.file, io.StringIO) and "after it: " in console.file.getvalue()
    assert "And after the likeliest of them" in page(trace)


def test_products_of_which_a_layer_has_several_have_names_of_their_own(tmp_path: Path) -> None:
    loaded = load_model(make_deepseek_v32(tmp_path))

    trace = trace_forward(loaded, text_tokenizer(), TOKENS, name="tiny", device="cpu")

    assert [stage.name for stage in trace.stages_of(2)] == [
        "attention norm", "latent of queries", "index queries", "index keys",
        "weights of index heads", "queries", "latent",
        "RoPE, KV write, attention", "attention out",
        "feed-forward norm", "router", "shared gate and up", "shared down", "experts",
    ]  # fmt: skip


@pytest.mark.parametrize("has_head", [True, False])
def test_it_is_asked_for_by_an_option(has_head: bool, tmp_path: Path) -> None:
    sizes = {"vocab_size": json_vocab_size(), "eos_token_id": eos_token()}
    folder = make_llama(tmp_path / "llama", **sizes)
    if has_head:
        _, folder = with_head(lambda to, **more: make_deepseek_v32(to, **sizes, **more), tmp_path)
    (folder / "tokenizer.json").write_text(tokenizer_json())

    result = baton_trace(folder, TEXT, "--mtp")

    assert (result.exit_code == 0) == has_head
    assert ("after it: " if has_head else "no MTP head") in result.output
