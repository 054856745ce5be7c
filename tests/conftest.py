"""For all tests: one thread of arithmetic, because tiny tensors on a busy machine want no more, and
Triton's interpreter where there is no GPU."""

from __future__ import annotations

import os

from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")

# Triton decides when a kernel is defined whether it will be compiled or interpreted.
if not os.path.exists("/dev/nvidia0"):
    os.environ.setdefault("TRITON_INTERPRET", "1")

# No test asserts a time, and this one of hypothesis' own would: machines are shared.
settings.register_profile("baton", deadline=None)
settings.load_profile("baton")
