# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""Matrix products within a kernel:   acc + a b   of tiles, accumulated in float32.

float32 is not rounded to tf32, as everywhere in Baton.
"""

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def dot(a, b, acc):
    """a [M, K] and b [K, N] of one dtype, acc [M, N] float32."""
    if INTERPRETED:  # whose numpy has no bfloat16 and would multiply the bits
        return acc + tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(a, b, acc, input_precision="ieee")
