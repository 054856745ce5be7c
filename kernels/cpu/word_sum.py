"""Calls the operator of source/elementwise/word_sum.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cpu.operators import Call, call


def word_sum(words: Tensor) -> int:
    total = torch.zeros(1, dtype=torch.int64)
    call(Call("word_sum", rows=words.numel(), inputs={"words": words}, outputs={"total": total}))
    return int(total)
