# mypy: allow-untyped-defs, allow-untyped-decorators, allow-incomplete-defs
"""What the sanitizer of interpreted kernels sees."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError


@triton.jit
def _copy(x, y, n, HAS_MASK: tl.constexpr, APART: tl.constexpr):
    at = tl.program_id(0) * APART + tl.arange(0, 4)
    inside = at < n if HAS_MASK else at >= 0
    tl.store(y + at, tl.load(x + at, mask=inside), mask=inside)


def copy(x: torch.Tensor, y: torch.Tensor, *, has_mask: bool = True, apart: int = 4) -> None:
    _copy[2,](x, y, len(x), HAS_MASK=has_mask, APART=apart)


interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")


@interpreted
def test_what_lies_outside_is_neither_read_nor_written() -> None:
    x, y = torch.arange(7.0), torch.zeros(9)[:7]

    copy(x, y)

    assert torch.equal(x, y)
    with pytest.raises(InterpreterError, match="read 1 items outside"):
        copy(x, torch.zeros(8), has_mask=False)
    with pytest.raises(InterpreterError, match="write 1 items outside"):
        copy(torch.zeros(8), y, has_mask=False)


@interpreted
def test_programs_do_not_touch_what_others_write() -> None:
    with pytest.raises(Exception, match="written by two programs"):
        copy(torch.zeros(8), torch.zeros(8), apart=3)
    x = torch.zeros(9)
    with pytest.raises(Exception, match="that another program writes"):
        copy(x[1:], x[:8])
