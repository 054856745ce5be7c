"""Compiles what launchers launch, for Hopper, on a machine without a GPU.

    with compiled_for_hopper() as built:     where TRITON_INTERPRET=0
        paged_decode(q, out, ...)            CPU tensors: nothing runs, `out` stays as it is
    built[0].name, .registers, .spilled_bytes, .shared_bytes, .has_wgmma

Arguments are specialised as Triton does at a launch: pointers and ints that 16 divides, ints that
are 1, None.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import __file__ as nvidia_backend
from triton.compiler import ASTSource

HOPPER = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.bool: "*i1",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")


@dataclass(frozen=True)
class Built:
    name: str
    registers: int
    spilled_bytes: int
    shared_bytes: int
    has_wgmma: bool


@contextmanager
def compiled_for_hopper() -> Iterator[list[Built]]:
    built: list[Built] = []

    def build(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        built.append(_build(kernel, args, kwargs))

    with mock.patch.object(triton.runtime.jit.JITFunction, "run", build):
        yield built


def _build(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Built:
    options = {key: value for key, value in kwargs.items() if key in OPTIONS}
    names = {key: value for key, value in kwargs.items() if key not in OPTIONS}
    bound = inspect.signature(kernel.fn).bind(*args, **names)
    bound.apply_defaults()
    signature, constants, aligned = {}, {}, {}
    for place, (parameter, value) in enumerate(
        zip(kernel.params, bound.arguments.values(), strict=True)
    ):
        kind = _kind(value, parameter)
        signature[parameter.name] = kind
        if kind == "constexpr":
            constants[parameter.name] = value
        elif _is_aligned(kind, value, parameter):
            aligned[place,] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, aligned)
    compiled = triton.compile(source, target=HOPPER, options=options)
    registers, spilled = _resources(compiled.asm["cubin"])
    return Built(
        kernel.fn.__name__,
        registers,
        spilled,
        compiled.metadata.shared,
        "wgmma.mma_async" in compiled.asm["ptx"],
    )


def _is_aligned(kind: str, value: Any, parameter: Any) -> bool:
    if kind.startswith("*"):
        return True
    return kind.startswith("i") and value % 16 == 0 and not parameter.do_not_specialize


def _kind(value: Any, parameter: Any) -> str:
    if isinstance(value, torch.Tensor):
        return TYPES[value.dtype]
    specialised = not parameter.do_not_specialize
    if (
        parameter.is_constexpr
        or value is None
        or (specialised and type(value) is int and value == 1)
    ):
        return "constexpr"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    return "fp32"


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread and bytes that it spills."""
    tool = Path(nvidia_backend).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", usage).groups()  # type: ignore[union-attr]
    return int(registers), int(stack)
