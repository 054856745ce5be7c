"""For all tests: one thread of arithmetic, because tiny tensors on a busy machine want no more."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
