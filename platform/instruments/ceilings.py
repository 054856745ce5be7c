"""Measured ceilings of this machine: memory bandwidth and matrix products.

    read bandwidth    summing a tensor larger than all caches: the bound of decoding
    matrix rate       the fastest of some large products, torch's and ours: the bound of prefill

Both vary with other work, clock speed and neighbours of a rented machine, so they are measured
again next to each comparison.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from baton.kernels.cpu.memory_reading import word_sum
from baton.kernels.products.packed_weight import can_pack, pack
from baton.platform.models.model_shape import Part

PROBE_BYTES = {"cpu": 256 << 20, "cuda": 1 << 30}
"""Larger than the caches of any machine."""
REPEATS = 4
MAX_S = 0.6
"""Seconds after which no further repeat begins."""
PRODUCTS = {
    "cpu": ((512, 1024, 4096), (2048, 2048, 4096)),
    "cuda": ((8192, 8192, 8192), (16384, 8192, 8192)),
}
"""Rows, K and N."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """The ceilings of one device and one dtype of matrices."""

    read_bytes_s: float
    flops_s: float
    flops_s_by_part: Mapping[Part, float] = field(default_factory=dict)
    """Rates of parts whose operands have other dtypes: see product_rates.py."""

    def rate(self, part: Part) -> float:
        """FLOP/s"""
        return self.flops_s_by_part.get(part, self.flops_s)

    def floor_s(self, part: Part, flops: float, num_bytes: float) -> float:
        """The least seconds for the work, if reading and computing overlap perfectly."""
        return max(flops / self.rate(part), num_bytes / self.read_bytes_s)

    def balance(self, part: Part) -> float:
        """FLOPs per byte above which arithmetic is the bound: the ridge of the roofline."""
        return self.rate(part) / self.read_bytes_s

    @property
    def ridge(self) -> float:
        """The balance of the dtype."""
        return self.flops_s / self.read_bytes_s


def measure_ceilings(dtype: torch.dtype, device: str = "cpu") -> Ceilings:
    return Ceilings(
        read_bytes_s=read_bandwidth(device) * 1e9, flops_s=matrix_rate(dtype, device) * 1e12
    )


def read_bandwidth(device: str = "cpu") -> float:
    """Bandwidth of all threads in GB/s; on a GPU, of a copy, counting reads and writes."""
    kind = torch.device(device).type
    words = _probe(device)
    if kind == "cpu":
        return words.nbytes / best_s(lambda: word_sum(words), device) / 1e9
    target = torch.empty_like(words)
    copied = best_s(lambda: target.copy_(words), device)
    return 2 * words.nbytes / copied / 1e9


def matrix_rate(dtype: torch.dtype, device: str = "cpu") -> float:
    """TFLOP/s of the best product found."""
    rates = []
    for num_rows, width, num_columns in PRODUCTS[torch.device(device).type]:
        x = torch.randn(num_rows, width, device=device).to(dtype)
        weight = torch.randn(num_columns, width, device=device).to(dtype)
        flops = 2 * num_rows * width * num_columns
        for product in _products(x, weight):
            rates.append(flops / best_s(product, device) / 1e12)
    return max(rates)


def _products(x: Tensor, weight: Tensor) -> list[Callable[[], object]]:
    products: list[Callable[[], object]] = [lambda: functional.linear(x, weight)]
    if can_pack(weight):
        packed = pack(weight)
        products.append(lambda: packed.linear(x, None))
    return products


@cache
def _probe(device: str) -> Tensor:
    """A probe tensor, written once, since unwritten memory has no pages yet."""
    num_words = PROBE_BYTES[torch.device(device).type] // 8
    return torch.ones(num_words, dtype=torch.int64, device=device)


def best_s(work: Callable[[], object], device: str) -> float:
    """The least time of several runs, since other work only makes them longer."""
    taken: list[float] = []
    with torch.inference_mode():
        while len(taken) < REPEATS and sum(taken) < MAX_S:
            _wait(device)
            started = time.perf_counter()
            work()
            _wait(device)
            taken.append(time.perf_counter() - started)
    return min(taken)


def _wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
