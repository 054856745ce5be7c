"""What makers of devices promise, to be read beside what is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Datasheet:
    """The data sheet of one whole device; None: it does not say."""

    name: str
    read_gb_s: float | None = None
    bf16_tflop_s: float | None = None
    """Dense."""

    def __str__(self) -> str:
        said = [
            *([] if self.read_gb_s is None else [f"{self.read_gb_s:,.0f} GB/s"]),
            *([] if self.bf16_tflop_s is None else [f"{self.bf16_tflop_s:,.0f} TFLOP/s bf16"]),
        ]
        return f"{self.name}: {', '.join(said) or 'unknown'}"


KNOWN: Mapping[str, tuple[float, float]] = {
    "H200": (4800, 989),
    "H100 NVL": (3900, 835),
    "H100 PCIe": (2000, 756),
    "H100": (3350, 989),
    "B200": (8000, 2250),
    "A100-SXM4-80GB": (2039, 312),
    "A100-SXM4-40GB": (1555, 312),
    "A100 80GB PCIe": (1935, 312),
    "L40S": (864, 362),
    "L4": (300, 121),
    "A10G": (600, 70),
    "RTX 4090": (1008, 165),
}
"""GB/s and dense bfloat16 TFLOP/s, by what is part of the device's name; the first that fits."""


def datasheet(device: str) -> Datasheet:
    kind = torch.device(device).type
    if kind == "cuda":
        return of_name(torch.cuda.get_device_name(device))
    return of_name(_cpu_name())  # a share of a machine's memory channels is nobody's to promise


def of_name(name: str) -> Datasheet:
    for part, (read_gb_s, bf16_tflop_s) in KNOWN.items():
        if part in name:
            return Datasheet(name, read_gb_s, bf16_tflop_s)
    return Datasheet(name)


def _cpu_name() -> str:
    if CPU_INFO.is_file():
        for line in CPU_INFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return "CPU of unknown model"
