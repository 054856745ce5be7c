"""For tests of kernels: whatever Triton's interpreter runs is watched."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from tests.kernels.gpu.sanitizer import sanitized


@pytest.fixture(autouse=True)
def _is_sanitized() -> Iterator[None]:
    """Launches of those that have imported Triton stay within their tensors, and do not race."""
    if "triton.runtime.interpreter" not in sys.modules:
        yield
        return
    with sanitized():
        yield
