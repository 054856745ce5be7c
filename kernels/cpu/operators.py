"""Calls of compiled operators: at once, or onto the tape that is being recorded.

    y = torch.empty_like(x)
    call(Call("rms_norm_f32", rows=len(x), inputs=(x, weight), outputs=(y,), ints=(width,)))

Tensors must be contiguous from their first item on, or carry their strides among the `ints`; what
an operator expects stands over it in its C++ source.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from baton.kernels.cpu.library import library

ROWS_TOKENS = -1
ROWS_OUTPUTS = -2
MAX_INPUTS, MAX_OUTPUTS, MAX_INTS, MAX_FLOATS = 12, 4, 12, 4
"""Of one call, as `Args` of source/operator.h has room for."""

ALONE_BYTES = 16 << 10
"""A core copies them in half a microsecond, which is what a second one costs."""

SUFFIXES = {torch.float32: "f32", torch.bfloat16: "bf16"}
"""What the operators compute with; other dtypes are left to torch."""


class Pass(ctypes.Structure):
    """As `Pass` of source/operator.h."""

    _fields_ = (
        ("num_tokens", ctypes.c_int64),
        ("num_outputs", ctypes.c_int64),
        ("num_requests", ctypes.c_int64),
    )


class Args(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_int64),
        ("inputs", ctypes.c_void_p * MAX_INPUTS),
        ("outputs", ctypes.c_void_p * MAX_OUTPUTS),
        ("ints", ctypes.c_int64 * MAX_INTS),
        ("floats", ctypes.c_double * MAX_FLOATS),
    )


class Entry(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p),
        ("args", ctypes.POINTER(Args)),
        ("alone_rows", ctypes.c_int64),
    )


@dataclass(frozen=True, slots=True)
class Call:
    """One operator and what it is given.

    `outputs` are what it was given to write, row after row; memory that it changes and that was
    there before, such as an arena, is among the `inputs`.
    """

    name: str
    _: KW_ONLY
    rows: int
    """The tokens, or the outputs, of the pass."""
    inputs: Sequence[Tensor | None]
    outputs: Sequence[Tensor]
    ints: Sequence[int] = ()
    floats: Sequence[float] = ()
    alone_rows: int = 0
    """So many rows, or fewer, one thread has computed before a second has heard of them."""

    def args(self) -> Args:
        args = Args(rows=self.rows)
        args.inputs[: len(self.inputs)] = [_address(tensor) for tensor in self.inputs]
        args.outputs[: len(self.outputs)] = [tensor.data_ptr() for tensor in self.outputs]
        args.ints[: len(self.ints)] = list(self.ints)
        args.floats[: len(self.floats)] = list(self.floats)
        return args

    def entry(self, args: Args) -> Entry:
        return Entry(address_of(self.name), ctypes.pointer(args), self.alone_rows)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


class Recording(Protocol):
    """See `baton.kernels.cpu.tape`."""

    def record(self, call: Call) -> None: ...


class _OfThread(threading.local):
    recording: Recording | None = None


_of_thread = _OfThread()


def set_recording(recording: Recording | None) -> None:
    """Of this thread: all calls go to it, too, until there is another."""
    _of_thread.recording = recording


def runs(*tensors: Tensor) -> bool:
    """Whether operators compute on such tensors, which must be of one dtype, on this machine."""
    first = tensors[0]
    return (
        first.device.type == "cpu"
        and first.dtype in SUFFIXES
        and all(tensor.dtype is first.dtype for tensor in tensors)
        and library() is not None
    )


def small_rows(row_bytes: int) -> int:
    """`alone_rows` of an operator that does little more than read and write such rows."""
    return ALONE_BYTES // row_bytes


def of_dtype(name: str, dtype: torch.dtype) -> str:
    """The operator `name` for tensors of `dtype`."""
    return f"{name}_{SUFFIXES[dtype]}"


def call(made: Call, of: Pass | None = None) -> None:
    """Run an operator now. `of` tells how large the pass is, to those that look at it."""
    args = made.args()
    play((Entry * 1)(made.entry(args)), of or Pass())
    if _of_thread.recording is not None:
        _of_thread.recording.record(made)


def play(
    entries: ctypes.Array[Entry],
    of: Pass,
    *,
    first: int = 0,
    count: int | None = None,
    seconds: ctypes.Array[ctypes.c_double] | None = None,
) -> None:
    """Run some entries in turn, on as many threads as torch has; `seconds` of each are added up."""
    num_entries = len(entries) - first if count is None else count
    _run()(
        ctypes.byref(entries, first * ctypes.sizeof(Entry)),
        num_entries,
        ctypes.byref(of),
        torch.get_num_threads(),
        None if seconds is None else ctypes.byref(seconds, first * ctypes.sizeof(ctypes.c_double)),
    )


@cache
def _run() -> ctypes._NamedFuncPointer:
    run = _library().baton_run
    run.argtypes = (
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_void_p,
    )
    run.restype = None
    return run


@cache
def address_of(name: str) -> int:
    """Raises AttributeError for an operator that the library has not."""
    address = ctypes.cast(getattr(_library(), name), ctypes.c_void_p).value
    assert address is not None
    return address


def _library() -> ctypes.CDLL:
    found = library()
    if found is None:
        raise RuntimeError("there are no compiled operators here; ask `runs` first")
    return found
