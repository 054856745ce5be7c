# mypy: allow-untyped-defs, allow-untyped-decorators, allow-incomplete-defs
"""What an interpreted launch replaces in Triton's language is found once, and put back."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from tests.kernels.gpu.quick_interpreter import quicken
from triton.runtime import interpreter

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")


@triton.jit
def _twice(x):
    return x + x


@triton.jit
def _sums(x, out, NUM: tl.constexpr):
    row = tl.program_id(0)
    items = _twice(tl.load(x + row * NUM + tl.arange(0, NUM)))
    tl.store(out + row, tl.sum(items + tl.zeros((NUM,), tl.float32), axis=0))


def sums(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(len(x))
    _sums[len(x),](x, out, NUM=x.shape[1])
    return out


def language() -> list[dict[str, object]]:
    return [dict(vars(each)) for each in (tl, tl.core, tl.math, tl.tensor, tl.dtype)]


def test_what_launches_replace_is_looked_for_once_and_put_back_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quicken()
    x = torch.arange(32.0).reshape(4, 8)
    sums(x)  # the first launch of a process leaves what Triton itself keeps
    replacements, before = interpreter._patch_lang, language()
    found: list[object] = []
    find = replacements._find

    def counted(function: object) -> object:
        found.append(function)
        return find(function)

    monkeypatch.setattr(replacements, "_changes", {})
    monkeypatch.setattr(replacements, "_find", counted)

    assert torch.equal(sums(x), 2 * x.sum(1))
    of_first = len(found)  # the kernel, and what it calls
    assert of_first > 1
    assert torch.equal(sums(x), 2 * x.sum(1))

    assert len(found) == of_first
    assert language() == before


def test_a_launch_that_fails_leaves_nothing_replaced() -> None:
    quicken()
    before = language()

    with pytest.raises(Exception, match="power of 2"):
        sums(torch.zeros(2, 3))  # three is no power of two

    assert language() == before
