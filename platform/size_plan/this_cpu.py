"""One core of this machine as an accelerator, with measured rates."""

from __future__ import annotations

import os

import torch

from baton.platform.instruments.ceilings import matrix_rate, read_bandwidth
from baton.platform.machine.accelerators import Accelerator

PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "bf16"}
LINK_GB_S = 2.0
"""GB/s through shared memory, one direction; a guess."""
GIB = 1 << 30


def this_core(dtype: str) -> Accelerator:
    """A replica has one thread. Takes about two seconds of it."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rate = matrix_rate(getattr(torch, dtype))
        read_gb_s = read_bandwidth()
    finally:
        torch.set_num_threads(num_threads)
    num_cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Accelerator(
        name="cpu",
        memory_gib=memory / GIB / num_cores,
        read_gb_s=read_gb_s,
        tflop_s={PRECISIONS[dtype]: rate},
        link_gb_s=LINK_GB_S,
        network_gb_s=LINK_GB_S,
        num_in_machine=num_cores,
        source="a core of this machine, measured",
    )
