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
from baton.engine.checkpoint.load_mtp import load_mtp_head
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


def reference(whole: Path, tensors: dict[str, Tensor], tokens: Sequence[int]) -> Tensor:
    """Logits [T, V], of all tokens but the last with the token behind it."""
    model = AutoModelForCausalLM.from_pretrained(whole)
    layers, body = model.model.layers, model.model

    def normalised(x: Tensor, name: str) -> Tensor:
        weight = tensors[f"{LAYER}{name}.weight"]
        return functional.rms_norm(x, (WIDTH,), weight, model.config.rms_norm_eps)

    def through(part: slice, **inputs: Tensor) -> Tensor:
        body.layers = layers[part]
        body.config.num_hidden_layers = len(body.layers)
        out: Tensor = body(**inputs, use_cache=False).last_hidden_state
        return out

    with torch.inference_mode():
        ids = torch.tensor([tokens])
        hidden = through(slice(NUM_LAYERS), input_ids=ids[:, :-1])
        embedded = body.embed_tokens(ids[:, 1:])
        pair = torch.cat((normalised(embedded, "enorm"), normalised(hidden, "hnorm")), dim=-1)
        body.norm.weight.data = tensors[LAYER + "shared_head.norm.weight"]
        x = pair @ tensors[LAYER + "eh_proj.weight"].T
        logits: Tensor = model.lm_head(through(slice(NUM_LAYERS, None), inputs_embeds=x))[0]
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
        found = head(hidden, torch.tensor(tokens[1:]), batch.sequences, own.layers[0])
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
        with pytest.raises(CheckpointError, match="no head that predicts"):
            load_mtp_head(folder, load_model(folder), device="cpu")


def test_a_head_that_is_not_whole_is_refused_by_name(tmp_path: Path) -> None:
    _, folder = with_head(make_deepseek_v3, tmp_path)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors[LAYER + "hnorm.weight"]
    save_file(tensors, path, metadata={"format": "pt"})

    with pytest.raises(CheckpointError, match=r"layers\.3\.hnorm\.weight"):
        load_mtp_head(folder, load_model(folder), device="cpu")
