"""Accelerators by their public data sheets: memory, bandwidth, arithmetic, links.

Rates are the makers' peaks for dense matrices. GB of memory are taken as GiB, as drivers report
them within 2 % (L4 and L40S reserve 6 % for error correction). Links are one direction of one
device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from baton.core.errors import InvalidConfig

NVIDIA = "https://www.nvidia.com/en-us/data-center/"
OTHERS = frozenset({"D", "Laptop", "Max-Q", "MIG", "NVL", "PCIe"})
"""Words in a device's name that mark another model, or a slice of one."""
NETWORK_GB_S = 50.0
"""400 Gb/s per device, as in common machines of eight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    name: str
    memory_gib: float
    read_gb_s: float
    tflop_s: Mapping[str, float]
    """Peak TFLOP/s of dense products, by the precision of the operands: `bf16`, `fp8`, `fp4`."""
    link_gb_s: float
    """GB/s to the other devices of its machine, one direction."""
    network_gb_s: float = NETWORK_GB_S
    """GB/s to other machines."""
    num_in_machine: int = 8
    """Devices that are joined by the fast link."""
    source: str
    device_names: tuple[str, ...] = field(default=())
    """Consecutive words of the driver's device name."""

    @property
    def is_cpu(self) -> bool:
        return self.name == "cpu"

    def ridge(self, precision: str) -> float:
        """FLOPs a byte from which on arithmetic is the bound."""
        return self.tflop_s[precision] * 1e3 / self.read_gb_s


ACCELERATORS = (
    Accelerator(
        name="a100-40gb",
        memory_gib=40,
        read_gb_s=1555,
        tflop_s={"bf16": 312},
        link_gb_s=300,
        network_gb_s=25,
        source=NVIDIA + "a100/",
        device_names=("A100-SXM4-40GB",),
    ),
    Accelerator(
        name="a100-80gb",
        memory_gib=80,
        read_gb_s=2039,
        tflop_s={"bf16": 312},
        link_gb_s=300,
        network_gb_s=25,
        source=NVIDIA + "a100/",
        device_names=("A100-SXM4-80GB",),
    ),
    Accelerator(
        name="a100-80gb-pcie",
        memory_gib=80,
        read_gb_s=1935,
        tflop_s={"bf16": 312},
        link_gb_s=32,
        network_gb_s=25,
        source=NVIDIA + "a100/",
        device_names=("A100 80GB PCIe",),
    ),
    Accelerator(
        name="h200",
        memory_gib=141,
        read_gb_s=4800,
        tflop_s={"bf16": 989, "fp8": 1979},
        link_gb_s=450,
        source=NVIDIA + "h200/",
        device_names=("H200",),
    ),
    Accelerator(
        name="h200-nvl",
        memory_gib=141,
        read_gb_s=4800,
        tflop_s={"bf16": 835, "fp8": 1671},
        link_gb_s=450,
        num_in_machine=4,
        source=NVIDIA + "h200/",
        device_names=("H200 NVL",),
    ),
    Accelerator(
        name="h100-nvl",
        memory_gib=94,
        read_gb_s=3900,
        tflop_s={"bf16": 835, "fp8": 1671},
        link_gb_s=300,
        num_in_machine=2,
        source=NVIDIA + "h100/",
        device_names=("H100 NVL",),
    ),
    Accelerator(
        name="h100-pcie",
        memory_gib=80,
        read_gb_s=2000,
        tflop_s={"bf16": 756, "fp8": 1513},
        link_gb_s=64,
        source=NVIDIA + "h100/",
        device_names=("H100 PCIe",),
    ),
    Accelerator(
        name="h100-sxm",
        memory_gib=80,
        read_gb_s=3350,
        tflop_s={"bf16": 989, "fp8": 1979},
        link_gb_s=450,
        source=NVIDIA + "h100/",
        device_names=("H100",),
    ),
    Accelerator(
        name="h800-sxm",
        memory_gib=80,
        read_gb_s=3350,
        tflop_s={"bf16": 989, "fp8": 1979},
        link_gb_s=200,
        source="https://arxiv.org/abs/2412.19437",
        device_names=("H800",),
    ),
    Accelerator(
        name="b200",
        memory_gib=180,
        read_gb_s=8000,
        tflop_s={"bf16": 2250, "fp8": 4500, "fp4": 9000},
        link_gb_s=900,
        source=NVIDIA + "dgx-b200/",
        device_names=("B200",),
    ),
    Accelerator(
        name="l40s",
        memory_gib=48,
        read_gb_s=864,
        tflop_s={"bf16": 362, "fp8": 733},
        link_gb_s=32,
        source=NVIDIA + "l40s/",
        device_names=("L40S",),
    ),
    Accelerator(
        name="l4",
        memory_gib=24,
        read_gb_s=300,
        tflop_s={"bf16": 121, "fp8": 242},
        link_gb_s=32,
        source=NVIDIA + "l4/",
        device_names=("L4",),
    ),
    Accelerator(
        name="mi300x",
        memory_gib=192,
        read_gb_s=5300,
        tflop_s={"bf16": 1307, "fp8": 2615},
        link_gb_s=448,
        source="https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html",
        device_names=("MI300X",),
    ),
    Accelerator(
        name="a10g",
        memory_gib=24,
        read_gb_s=600,
        tflop_s={"bf16": 70},
        link_gb_s=32,
        source="https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf",
        device_names=("A10G",),
    ),
    Accelerator(
        name="rtx-4090",
        memory_gib=24,
        read_gb_s=1008,
        tflop_s={"bf16": 165, "fp8": 330},
        link_gb_s=32,
        source="https://www.nvidia.com/en-us/geforce/graphics-cards/40-series/rtx-4090/",
        device_names=("RTX 4090",),
    ),
)


def accelerator(name: str) -> Accelerator:
    """Raises InvalidConfig that names all there are."""
    for one in ACCELERATORS:
        if one.name == name.lower():
            return one
    known = ", ".join(one.name for one in ACCELERATORS)
    raise InvalidConfig(f"--accelerator {name}: give one of {known}, or cpu, which is measured")


def of_device(device_name: str) -> Accelerator | None:
    """The accelerator for a driver's device name; None if it has no data sheet here, since a
    similar device's would be wrong."""
    words = device_name.split()
    for one in ACCELERATORS:
        if any(_is_called(part.split(), words) for part in one.device_names):
            return one
    return None


def _is_called(part: Sequence[str], words: Sequence[str]) -> bool:
    places = range(len(words) - len(part) + 1)
    is_within = any(words[place : place + len(part)] == part for place in places)
    return is_within and OTHERS & set(words) <= set(part)
