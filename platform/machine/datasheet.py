"""Peak rates from makers' data sheets, for comparison with measurements."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from baton.platform.machine.accelerators import of_device

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


def datasheet(device: str) -> Datasheet:
    kind = torch.device(device).type
    if kind == "cuda":
        return of_name(torch.cuda.get_device_name(device))
    return of_name(_cpu_name())  # a share of a machine's memory channels is nobody's to promise


def of_name(name: str) -> Datasheet:
    known = of_device(name)
    if known is None:
        return Datasheet(name)
    return Datasheet(name, known.read_gb_s, known.tflop_s["bf16"])


def _cpu_name() -> str:
    if CPU_INFO.is_file():
        for line in CPU_INFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return "CPU of unknown model"
