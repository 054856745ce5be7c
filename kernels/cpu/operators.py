"""Calls of compiled operators, which run at once or are recorded on a tape.

    y = torch.empty_like(x)
    inputs = {"x": x, "more": z, "width": width}
    call(Call("add_f32", rows=len(x), inputs=inputs, outputs={"y": y}))

The names are those of the fields that the operator declares in its C++ source, which Python reads
(`signature_of`): a call with a missing or an unknown field is refused. Tensors must be contiguous
from their first item on, or have their strides among the inputs.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from baton.kernels.cpu.library import library

ROWS_TOKENS = -1
ROWS_OUTPUTS = -2

ALONE_BYTES = 16 << 10
"""Bytes that a core copies in half a microsecond, the cost of waking a second one."""

SUFFIXES = {torch.float32: "f32", torch.bfloat16: "bf16"}
"""The dtypes that operators support; torch computes with others."""


class Pass(ctypes.Structure):
    """The pass as C++ reads it: `Pass` of source/runtime/operator.h."""

    _fields_ = (
        ("num_tokens", ctypes.c_int64),
        ("num_outputs", ctypes.c_int64),
        ("num_requests", ctypes.c_int64),
    )


Args = ctypes.Structure
"""The arguments of one operator, field by field as its C++ source declares them."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The fields that an operator takes."""

    args: type[Args]
    tensors: frozenset[str]
    """The fields that are pointers."""
    numbers: frozenset[str]


class Entry(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p),
        ("args", ctypes.c_void_p),
        ("alone_rows", ctypes.c_int64),
    )


@dataclass(frozen=True, slots=True)
class Call:
    """One operator with its arguments.

    `outputs` are tensors that the operator writes, row by row; memory that existed before and is
    updated, such as an arena, is among the `inputs`.
    """

    name: str
    _: KW_ONLY
    rows: int
    """Number of tokens, or of outputs, of the pass."""
    inputs: Mapping[str, Tensor | float | None]
    """Tensors, numbers, or None for optional tensors, by field."""
    outputs: Mapping[str, Tensor | None]
    alone_rows: int = 0
    """Most rows that one thread computes sooner than a second thread would be notified."""

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that are read or written, by field."""
        given = {**self.inputs, **self.outputs}
        return {name: value for name, value in given.items() if isinstance(value, Tensor)}

    def args(self) -> Args:
        """Raises TypeError if the arguments are not those that the operator declares."""
        signature = signature_of(self.name)
        addresses: dict[str, int | None] = {}
        numbers: dict[str, float] = {}
        for given in (self.inputs, self.outputs):
            for name, value in given.items():
                if isinstance(value, Tensor):
                    addresses[name] = value.data_ptr()
                elif value is None:
                    addresses[name] = None
                else:
                    numbers[name] = value
        if addresses.keys() != signature.tensors or numbers.keys() != signature.numbers:
            wrong = [
                *_mismatch("tensors", signature.tensors, addresses),
                *_mismatch("numbers", signature.numbers, numbers),
            ]
            raise TypeError(f"operator {self.name}: {'; '.join(wrong)}")
        return signature.args(self.rows, **addresses, **numbers)

    def entry(self, args: Args) -> Entry:
        """`args` must be kept alive as long as the entry may be run."""
        return Entry(address_of(self.name), ctypes.addressof(args), self.alone_rows)


def _mismatch(kind: str, declared: frozenset[str], given: Mapping[str, object]) -> list[str]:
    missing, unknown = sorted(declared - given.keys()), sorted(given.keys() - declared)
    return [
        f"{kind} {what}: {', '.join(names)}"
        for what, names in (("missing", missing), ("that it does not take", unknown))
        if names
    ]


class Recording(Protocol):
    """See `baton.kernels.cpu.tape`."""

    def record(self, call: Call) -> None: ...


class _OfThread(threading.local):
    recording: Recording | None = None


_of_thread = _OfThread()


def set_recording(recording: Recording | None) -> None:
    """Set the recording, or None, that receives all further calls of this thread."""
    _of_thread.recording = recording


def runs(*tensors: Tensor) -> bool:
    """Whether this machine has operators for such tensors, which must all have one dtype."""
    first = tensors[0]
    return (
        first.device.type == "cpu"
        and first.dtype in SUFFIXES
        and all(tensor.dtype is first.dtype for tensor in tensors)
        and library() is not None
    )


def small_rows(row_bytes: int) -> int:
    """`alone_rows` of an operator that does little more than read and write rows of this size."""
    return ALONE_BYTES // row_bytes


def of_dtype(name: str, dtype: torch.dtype) -> str:
    """Name of the operator `name` for tensors of `dtype`."""
    return f"{name}_{SUFFIXES[dtype]}"


def call(made: Call, of: Pass | None = None) -> None:
    """Run an operator now. `of`: the size of the pass, for operators that need it."""
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
    """Run entries one after the other with torch's number of threads; the time of each is added to
    `seconds`."""
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


_FIELD = re.compile(r"(?:const )?(?P<kind>\w+\*|int64_t|double) (?P<name>\w+)")
"""One declared field; every pointer is the address of a tensor."""


@cache
def signature_of(name: str) -> Signature:
    """The signature, parsed from the text of the C++ declaration."""
    declare = getattr(_library(), f"{name}_fields")
    declare.restype = ctypes.c_char_p
    fields: list[tuple[str, type]] = []
    for declared in declare().decode().split(";")[:-1]:
        found = _FIELD.fullmatch(declared.strip())
        if found is None:
            raise ValueError(f"operator {name} declares {declared.strip()!r}, which is no field")
        fields.append((found["name"], _C_TYPES.get(found["kind"], ctypes.c_void_p)))
    tensors = frozenset(field for field, kind in fields if kind is ctypes.c_void_p)
    numbers = frozenset(field for field, _ in fields) - tensors - {"rows"}
    return Signature(type(f"Args_{name}", (Args,), {"_fields_": fields}), tensors, numbers)


_C_TYPES: Mapping[str, type] = {"int64_t": ctypes.c_int64, "double": ctypes.c_double}


@cache
def address_of(name: str) -> int:
    """Raises AttributeError for an operator that the library does not have."""
    address = ctypes.cast(getattr(_library(), name), ctypes.c_void_p).value
    assert address is not None
    return address


def _library() -> ctypes.CDLL:
    found = library()
    if found is None:
        raise RuntimeError("there are no compiled operators here; ask `runs` first")
    return found
