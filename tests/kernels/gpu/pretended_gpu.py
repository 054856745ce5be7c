"""Tensors of a CPU that say they are of a GPU, so that kernels hand them to Triton, interpreted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch


@contextmanager
def tensors_on_a_gpu() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "is_cuda", True)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        yield
