"""Checkpoints that lie in other ways than ours: transposed, fused, grouped, without a prefix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.model_runs import assert_near, logits_in_chunks, make_prompt, make_runner
from tests.tiny_checkpoints import FAMILIES, make_gpt2, make_new_falcon, make_qwen2

from baton.core.errors import CheckpointError
from baton.engine.checkpoint.load import load_model
from baton.engine.layers.attention import HeadShape
from baton.engine.models.config.arrangement import BY_KV_HEAD, TRANSPOSED

Tensors = dict[str, torch.Tensor]


def edit_tensors(folder: Path, edit: Callable[[Tensors], Tensors]) -> None:
    save_file(edit(load_file(folder / "model.safetensors")), folder / "model.safetensors")


def test_a_transposed_matrix_is_stored_by_its_inputs() -> None:
    heads = HeadShape(num_heads=1, num_kv_heads=1, head_dim=1)
    stored = torch.arange(6.0).view(2, 3)

    assert TRANSPOSED.stored_shape((3, 2)) == (2, 3)
    assert torch.equal(TRANSPOSED.ours(stored, heads), stored.T)


@pytest.mark.parametrize("tail", [(), (5,)], ids=["bias", "weight"])
def test_kv_heads_behind_their_queries_come_after_all_queries(tail: tuple[int, ...]) -> None:
    heads = HeadShape(num_heads=4, num_kv_heads=2, head_dim=3)
    order = ["q0", "q1", "k0", "v0", "q2", "q3", "k1", "v1"]
    value_by_name = {name: torch.randn(3, *tail) for name in order}

    ours = BY_KV_HEAD.ours(torch.cat([value_by_name[name] for name in order]), heads)

    wanted = ["q0", "q1", "q2", "q3", "k0", "k1", "v0", "v1"]
    assert torch.equal(ours, torch.cat([value_by_name[name] for name in wanted]))


def test_gpt2_is_found_without_its_prefix_and_with_its_masks(tmp_path: Path) -> None:
    """As the checkpoints of OpenAI are."""
    folder, prompt = make_gpt2(tmp_path), make_prompt(20)
    expected = logits_in_chunks(make_runner(folder), prompt, 7)

    def strip(tensors: Tensors) -> Tensors:
        masks = {f"h.{i}.attn.bias": torch.ones(1, 1, 8, 8) for i in range(2)}
        masks |= {f"h.{i}.attn.masked_bias": torch.tensor(-1e4) for i in range(2)}
        return {
            name.removeprefix("transformer."): tensor for name, tensor in tensors.items()
        } | masks

    edit_tensors(folder, strip)

    assert_near(logits_in_chunks(make_runner(folder), prompt, 7), expected)


def test_a_misfit_is_told_by_the_shape_as_stored(tmp_path: Path) -> None:
    folder = make_gpt2(tmp_path)

    def turn(tensors: Tensors) -> Tensors:
        name = "transformer.h.0.mlp.c_fc.weight"
        return {**tensors, name: tensors[name].T.contiguous()}

    edit_tensors(folder, turn)

    with pytest.raises(CheckpointError, match=r"c_fc\.weight is \[48, 32\], not \[32, 48\]"):
        load_model(folder)


@pytest.mark.parametrize(
    ("make", "bias"),
    [
        (make_qwen2, "model.layers.1.self_attn.k_proj.bias"),
        (make_gpt2, "transformer.h.0.attn.c_attn.bias"),
        (make_new_falcon, "transformer.h.1.ln_mlp.bias"),
    ],
)
def test_a_bias_that_is_lost_is_missed(
    make: Callable[..., Path], bias: str, tmp_path: Path
) -> None:
    folder = make(tmp_path)

    edit_tensors(folder, lambda tensors: {k: v for k, v in tensors.items() if k != bias})

    with pytest.raises(CheckpointError, match=f"missing tensors: {bias}"):
        load_model(folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_of_every_family_is_read_once(family: str, tmp_path: Path) -> None:
    folder = FAMILIES[family](tmp_path)
    reports: list[tuple[int, int]] = []

    load_model(folder, progress=lambda done, total: reports.append((done, total)))

    tensors = load_file(folder / "model.safetensors").values()
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert len(reports) >= len(tensors)  # of a stack, each expert is told
    assert [done for done, _ in reports] == sorted({done for done, _ in reports})
    assert reports[-1] == (total, total)
