"""Soft-capped attention against its definition."""

from __future__ import annotations

import pytest
import torch

from baton.kernels import softcap_attention as kernel


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("score_items", [1, 60, 1 << 20], ids=["one by one", "few", "all at once"])
def test_however_queries_are_cut_attention_is_as_defined(
    score_items: int, has_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "SCORE_ITEMS", score_items)
    q, (k, v) = torch.randn(1, 2, 3, 7, 5), torch.randn(2, 1, 2, 7, 5)
    hidden = (torch.rand(7, 7) < 0.5).fill_diagonal_(False)
    bias = torch.zeros(7, 7).masked_fill(hidden, -torch.inf) if has_bias else None

    out = kernel.softcap_attention(q, k, v, bias, 0.8, 0.5)

    torch.testing.assert_close(out, kernel.reference(q, k, v, bias, 0.8, 0.5), rtol=0, atol=1e-5)


def test_a_wide_cap_changes_nothing_and_a_narrow_one_makes_scores_alike() -> None:
    q, (k, v) = torch.randn(1, 1, 1, 4, 8), torch.randn(2, 1, 1, 9, 8)
    bias = torch.zeros(4, 9)

    plain = torch.nn.functional.scaled_dot_product_attention(q[:, 0], k, v, scale=1.0)
    wide = kernel.softcap_attention(q, k, v, bias, 1.0, 1e4)
    narrow = kernel.softcap_attention(q, k, v, bias, 1.0, 1e-4)

    torch.testing.assert_close(wide[:, 0], plain, rtol=0, atol=1e-4)
    torch.testing.assert_close(narrow[0, 0, 0], v.mean(2)[0].expand(4, 8), rtol=0, atol=1e-3)
