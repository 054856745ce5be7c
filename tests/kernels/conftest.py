"""For tests of kernels: Triton's interpreter is watched; the matrix tiles of a CPU are chosen."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import cast

import pytest
from tests.kernels.gpu.sanitizer import sanitized

from baton.kernels.cpu.library import library
from baton.kernels.cpu.matrix_tiles import Answer, Tiles, tiles_in_use, use_tiles


@pytest.fixture(autouse=True)
def _is_sanitized() -> Iterator[None]:
    """Launches of those that have imported Triton stay within their tensors, and do not race."""
    if "triton.runtime.interpreter" not in sys.modules:
        yield
        return
    with sanitized():
        yield


@pytest.fixture
def leave_as_found() -> Iterator[None]:
    """Tiles that are used afterwards are those that were used before."""
    before, compiled = tiles_in_use(), library()
    yield
    if compiled is not None:
        use_tiles(compiled, before)


@pytest.fixture(params=[Tiles.EMULATED, Tiles.AMX])
def tiles(request: pytest.FixtureRequest, leave_as_found: None) -> Tiles:
    """The tiles that are used meanwhile: emulated ones, and those of the CPU where it has some."""
    compiled, wanted = library(), cast(Tiles, request.param)
    if compiled is None or use_tiles(compiled, wanted) is not Answer.IN_USE:
        pytest.skip(f"no tiles here: {wanted.name}")
    return wanted
