"""Attention that is written out, for soft caps and sinks, against its definition."""

from __future__ import annotations

import pytest
import torch

from baton.kernels.attention import explicit_attention as kernel
from baton.kernels.attention.scoring import Scoring


@pytest.mark.parametrize("softcap", [None, 0.5], ids=["uncapped", "capped"])
@pytest.mark.parametrize("has_sinks", [False, True], ids=["no sinks", "sinks"])
@pytest.mark.parametrize("has_bias", [False, True], ids=["causal", "biased"])
@pytest.mark.parametrize("score_items", [1, 60, 1 << 20], ids=["one by one", "few", "all at once"])
def test_however_queries_are_cut_attention_is_as_defined(
    score_items: int,
    has_bias: bool,
    has_sinks: bool,
    softcap: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel, "SCORE_ITEMS", score_items)
    q, (k, v) = torch.randn(1, 2, 3, 7, 5), torch.randn(2, 1, 2, 7, 5)
    hidden = (torch.rand(7, 7) < 0.5).fill_diagonal_(False)
    bias = torch.zeros(7, 7).masked_fill(hidden, -torch.inf) if has_bias else None
    sinks = torch.randn(6) if has_sinks else None
    scoring = Scoring(scale=0.8, softcap=softcap)

    out = kernel.explicit_attention(q, k, v, bias, scoring, sinks)

    expected = kernel.reference(q, k, v, bias, scoring, sinks)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-5)


def test_a_wide_cap_changes_nothing_and_a_narrow_one_makes_scores_alike() -> None:
    q, (k, v) = torch.randn(1, 1, 1, 4, 8), torch.randn(2, 1, 1, 9, 8)
    bias = torch.zeros(4, 9)

    def attend(softcap: float) -> torch.Tensor:
        scoring = Scoring(scale=1.0, softcap=softcap)
        return kernel.explicit_attention(q, k, v, bias, scoring, None)

    plain = torch.nn.functional.scaled_dot_product_attention(q[:, 0], k, v, scale=1.0)
    torch.testing.assert_close(attend(1e4)[:, 0], plain, rtol=0, atol=1e-4)
    torch.testing.assert_close(attend(1e-4)[0, 0, 0], v.mean(2)[0].expand(4, 8), rtol=0, atol=1e-3)


def test_a_heavy_sink_takes_all_weight_and_a_light_one_none() -> None:
    q, (k, v) = torch.randn(1, 1, 2, 4, 8), torch.randn(2, 1, 1, 4, 8)

    out = kernel.explicit_attention(q, k, v, None, Scoring(), torch.tensor([-1e4, 1e4]))

    plain = torch.nn.functional.scaled_dot_product_attention(q[0, :, :1], k, v, is_causal=True)
    torch.testing.assert_close(out[0, 0, 0], plain[0, 0], rtol=0, atol=1e-5)
    assert not out[0, 0, 1].any()
