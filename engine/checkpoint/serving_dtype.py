"""The dtype that a model is served in.

    auto    the dtype that config.json declares, else that of the tensors;
            where that is float16 and the device a CPU: bfloat16

The compiled operators of a CPU, its int8 and int4 weights among them, compute in bfloat16 and
float32. Of a float16 checkpoint bfloat16 keeps every magnitude (float16 ends at 65,504) and takes
as much memory; it has 8 bits of mantissa for 11. Float32 would lose nothing, and take twice the
memory and twice the time of all that reads weights and KV: who wants it says so.
"""

from __future__ import annotations

import torch

from baton.core.errors import CheckpointError
from baton.core.kv_layout import WIDE


def serving_dtype(wanted: str, declared: str, device: str) -> str:
    """`wanted` is as configured, `declared` the checkpoint's own. Raises CheckpointError for one
    that nothing is served in."""
    if wanted not in ("auto", *WIDE):
        raise CheckpointError(f"dtype {wanted!r}; supported are auto, {', '.join(WIDE)}")
    if wanted != "auto":
        return wanted
    is_on_cpu = torch.device(device).type == "cpu"
    return "bfloat16" if declared == "float16" and is_on_cpu else declared
