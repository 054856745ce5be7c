"""Chooses the dtype that a model is served in.

    auto    the dtype that config.json declares, or else that of the tensors;
            but bfloat16 on a CPU if that is float16

The compiled operators of a CPU, including those for int8 and int4 weights, compute in bfloat16 and
float32. Bfloat16 covers the range of a float16 checkpoint (up to 65,504) in the same memory, with 8
instead of 11 bits of mantissa. Float32 would lose nothing, but take twice the memory, and twice the
time for everything that reads weights and KV, so it must be set explicitly.
"""

from __future__ import annotations

import torch

from baton.core.errors import CheckpointError
from baton.core.kv_layout import WIDE


def serving_dtype(wanted: str, declared: str, device: str) -> str:
    """The dtype to serve in, from the configured and the checkpoint's declared one. Raises
    CheckpointError if `wanted` is not supported."""
    if wanted not in ("auto", *WIDE):
        raise CheckpointError(f"dtype {wanted!r}; supported are auto, {', '.join(WIDE)}")
    if wanted != "auto":
        return wanted
    is_on_cpu = torch.device(device).type == "cpu"
    return "bfloat16" if declared == "float16" and is_on_cpu else declared
