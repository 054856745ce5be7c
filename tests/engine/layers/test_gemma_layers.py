"""What Gemma does in the dtype of its weights, to the last bit as transformers does it."""

from __future__ import annotations

import pytest
import torch
from transformers.models.gemma3.modeling_gemma3 import (
    Gemma3RMSNorm,
    Gemma3TextScaledWordEmbedding,
)

from baton.engine.layers.embedding import Embedding
from baton.engine.layers.norm import AddGemmaRmsNorm, GemmaRmsNorm

NARROW = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", NARROW)
def test_a_weight_stored_less_one_keeps_its_precision(dtype: torch.dtype) -> None:
    x, weight = torch.randn(5, 24).to(dtype), (torch.randn(24) / 300).to(dtype)
    theirs = Gemma3RMSNorm(24, 1e-6)
    theirs.weight.data = weight
    ours = GemmaRmsNorm(24, 1e-6)
    ours.load_state_dict({"weight": weight}, assign=True)

    assert torch.equal(ours(x), theirs(x))


@pytest.mark.parametrize("dtype", NARROW)
def test_the_residual_is_added_in_the_dtype_of_the_stream(dtype: torch.dtype) -> None:
    x, residual = torch.randn(2, 5, 24).to(dtype)
    norm = AddGemmaRmsNorm(24, 1e-6)
    norm.load_state_dict({"weight": torch.randn(24).to(dtype)}, assign=True)

    y, s = norm(x, residual)

    assert torch.equal(s, x + residual)
    assert torch.equal(y, norm(s, None)[0])


@pytest.mark.parametrize("dtype", [torch.float32, *NARROW])
def test_the_embedding_is_scaled_by_a_rounded_root(dtype: torch.dtype) -> None:
    weight, ids = torch.randn(9, 3072).to(dtype), torch.tensor([4, 0, 8])
    theirs = Gemma3TextScaledWordEmbedding(9, 3072, padding_idx=0, embed_scale=3072**0.5)
    theirs.weight.data = weight
    ours = Embedding(9, 3072, scale=3072**0.5)
    ours.load_state_dict({"weight": weight}, assign=True)

    assert torch.equal(ours(ids), theirs(ids))
