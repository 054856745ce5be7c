"""Timing on a GPU, and its limits, measured in the same run as what they are compared with.

copy     bytes read and written a second, with a tensor many times the L2 cache
bf16     FLOPs a second of a large square matrix product by cuBLAS
fp8      the same with e4m3 and one scale
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

FLUSH_BYTES = 512 << 20
"""Several times the L2 cache: written before each run, to flush it."""
MIN_RUNS, MAX_RUNS = 5, 40
SECONDS_A_MEASUREMENT = 0.4
COPY_BYTES = 4 << 30
SIDE = 8192


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Limits of the device per second; 0: not known."""

    bytes: float
    bf16: float
    fp8: float

    def least_seconds(self, num_bytes: float, num_flops: float, rate: str) -> float:
        """The lower bound: bytes over bandwidth or FLOPs over their rate, whichever is longer."""
        flops = getattr(self, rate)
        return max(num_bytes / self.bytes, num_flops / flops if flops else 0.0)


class Clock:
    """Median times; before each run the device is idle and its L2 cache is flushed."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device)

    def seconds(self, run: Callable[[], object]) -> float:
        run()
        torch.cuda.synchronize(self._device)
        started = time.perf_counter()
        run()
        torch.cuda.synchronize(self._device)
        once = max(time.perf_counter() - started, 1e-6)
        num_runs = min(MAX_RUNS, max(MIN_RUNS, int(SECONDS_A_MEASUREMENT / once)))
        events = []
        for _ in range(num_runs):
            self._flush.zero_()  # long enough for the host to run ahead of the device
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begun.record()
            run()
            ended.record()
            events.append((begun, ended))
        torch.cuda.synchronize(self._device)
        return statistics.median(float(a.elapsed_time(b)) for a, b in events) / 1e3

    def ceilings(self) -> Ceilings:
        copied_s = self._copied_s()
        a, b = (
            torch.randn(SIDE, SIDE, device=self._device, dtype=torch.bfloat16) for _ in range(2)
        )
        num_flops = 2 * SIDE**3
        bf16_s = self.seconds(lambda: functional.linear(a, b))
        return Ceilings(2 * COPY_BYTES / copied_s, num_flops / bf16_s, self._fp8(a, b, num_flops))

    def _copied_s(self) -> float:
        source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=self._device)
        target = torch.empty_like(source)
        return self.seconds(lambda: target.copy_(source))

    def _fp8(self, a: Tensor, b: Tensor, num_flops: float) -> float:
        """FLOPs a second in fp8; 0 if the device has none."""
        one = torch.ones((), device=self._device)
        quantized = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
        scaled = functional.ScalingType.TensorWise

        def run() -> Tensor:
            return functional.scaled_mm(quantized[0], quantized[1].t(), one, scaled, one, scaled)

        try:
            return num_flops / self.seconds(run)
        except RuntimeError:
            return 0.0
