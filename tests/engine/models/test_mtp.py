"""The head that predicts one token further, against the same put together in transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.model_runs import assert_near, logits_in_chunks, make_prompt, make_runner
from tests.tiny_checkpoints import make_deepseek_v3, make_deepseek_v32, make_glm_moe_dsa, make_llama
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM

from baton.core.errors import CheckpointError
from baton.engine.batch.batch import Chunk, make_batch
from baton.engine.checkpoint.load import load_model
from baton.engine.checkpoint.load_heads import load_mtp_head
from baton.engine.memory.kv_cache import KvCache

NUM_LAYERS, WIDTH, BLOCK_SIZE = 3, 32, 4
LAYER = f"model.layers.{NUM_LAYERS}."
MAKERS = (make_deepseek_v3, make_deepseek_v32, make_glm_moe_dsa)


def with_head(make: Callable[..., Path], folder: Path) -> tuple[Path, Path]:
    """A model of four layers, and a checkpoint in which the last of them is the head's."""
    options = {"indexer_types": ["full"] * 4} if make is make_glm_moe_dsa else {}
    whole = make(folder / "whole", num_hidden_layers=NUM_LAYERS + 1, **options)
    tensors = load_file(whole / "model.safetensors")
    torch.manual_seed(3)
    tensors[LAYER + "eh_proj.weight"] = torch.randn(WIDTH, 2 * WIDTH) / 4
    for name in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"{LAYER}{name}.weight"] = torch.rand(WIDTH) + 0.5
    tensors[LAYER + "embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors[LAYER + "shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    shorter = folder / "shorter"
    shorter.mkdir()
    save_file(tensors, shorter / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((whole / "config.json").read_text())
    config["num_hidden_layers"] = NUM_LAYERS
    for key in ("mlp_layer_types", "layer_types", "indexer_types"):
        if key in config:
            config[key] = config[key][:NUM_LAYERS]
    (shorter / "config.json").write_text(json.dumps(config))
    return whole, shorter


class Reference:
    """The model and its head, put together from what transformers has."""

    def __init__(self, whole: Path, tensors: dict[str, Tensor]) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(whole)
        self._tensors = tensors
        self._layers = self.model.model.layers
        self._norm = self.model.model.norm.weight.data
        self._head_norm = tensors[LAYER + "shared_head.norm.weight"]

    def hidden(self, tokens: Sequence[int]) -> Tensor:
        """[1, T, D] What the model gives."""
        ids = torch.tensor([tokens])
        return self._through(slice(NUM_LAYERS), self._norm, input_ids=ids)

    def pairs(self, tokens: Sequence[int], hidden: Tensor) -> Tensor:
        """[1, T, D] What enters the head's layer, of hidden states and the tokens behind them."""
        embedded = self.model.model.embed_tokens(torch.tensor([tokens]))
        both = self._normalised(embedded, "enorm"), self._normalised(hidden, "hnorm")
        return torch.cat(both, dim=-1) @ self._tensors[LAYER + "eh_proj.weight"].T

    def outputs(self, pairs: Tensor) -> Tensor:
        """[1, T, D] What the head gives."""
        return self._through(slice(NUM_LAYERS, None), self._head_norm, inputs_embeds=pairs)

    def _normalised(self, x: Tensor, name: str) -> Tensor:
        weight = self._tensors[f"{LAYER}{name}.weight"]
        return functional.rms_norm(x, (WIDTH,), weight, self.model.config.rms_norm_eps)

    def _through(self, part: slice, norm: Tensor, **inputs: Tensor) -> Tensor:
        body = self.model.model
        body.layers = self._layers[part]
        body.config.num_hidden_layers = len(body.layers)
        body.norm.weight.data = norm
        out: Tensor = body(**inputs, use_cache=False).last_hidden_state
        return out


@torch.inference_mode()
def reference(whole: Path, tensors: dict[str, Tensor], tokens: Sequence[int]) -> Tensor:
    """Logits [T, V], of all tokens but the last with the token behind it."""
    made = Reference(whole, tensors)
    pairs = made.pairs(tokens[1:], made.hidden(tokens[:-1]))
    logits: Tensor = made.model.lm_head(made.outputs(pairs))[0]
    return logits


@pytest.mark.parametrize("make", MAKERS)
def test_it_gives_the_logits_of_one_token_further(
    make: Callable[..., Path], tmp_path: Path
) -> None:
    whole, folder = with_head(make, tmp_path)
    tokens = make_prompt(31)
    loaded = load_model(folder)

    head = load_mtp_head(folder, loaded, device="cpu")

    layout = loaded.info.layout(BLOCK_SIZE)
    cache, own = KvCache(layout, 8), KvCache(head.layout(layout), 8)
    batch = make_batch([Chunk(tokens[:-1], 0, range(8), 30)], BLOCK_SIZE, "cpu")
    with torch.inference_mode():
        hidden = loaded.model(batch, cache.layers, lambda layer: None)
        out = head(hidden, torch.tensor(tokens[1:]), batch.sequences, own.layers)
        found = head.logits(out)
    expected = reference(whole, load_file(folder / "model.safetensors"), tokens)
    assert_near(found, expected)


def test_the_model_itself_does_not_change(tmp_path: Path) -> None:
    _, folder = with_head(make_deepseek_v3, tmp_path)
    prompt = make_prompt(20)
    before = logits_in_chunks(make_runner(folder), prompt, 7)

    loaded = load_model(folder)
    head = load_mtp_head(folder, loaded, device="cpu")

    assert head.layer.embed is loaded.model.embed and head.layer.head is loaded.model.head
    assert torch.equal(logits_in_chunks(make_runner(folder), prompt, 7), before)


def test_a_checkpoint_without_one_is_refused(tmp_path: Path) -> None:
    for folder in (make_llama(tmp_path / "llama"), make_deepseek_v3(tmp_path / "v3")):
        with pytest.raises(CheckpointError, match="no MTP head, which predicts"):
            load_mtp_head(folder, load_model(folder), device="cpu")


def test_a_head_that_is_not_whole_is_refused_by_name(tmp_path: Path) -> None:
    _, folder = with_head(make_deepseek_v3, tmp_path)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors[LAYER + "hnorm.weight"]
    save_file(tensors, path, metadata={"format": "pt"})

    with pytest.raises(CheckpointError, match=r"layers\.3\.hnorm\.weight"):
        load_mtp_head(folder, load_model(folder), device="cpu")
