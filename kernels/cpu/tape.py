"""A tape: a forward pass as a list of operators, recorded once and replayed for batches of any
size.

    with Recorder() as recorder:               runs the model, in Python, on a few tokens
        hidden = model(batch, arenas, recorder.mark)
    tape = recorder.tape(hidden, max_tokens=.., max_outputs=..)
    tape.play(of)                              runs the same operators on others, without Python

This corresponds to a CUDA graph: the tensors that describe a pass (tokens, positions, block tables)
stay at their addresses and are filled anew, their sizes are read from `Pass`, and everything else
is fixed. A tape holds

    constants     tensors that no operator wrote: weights, arenas, the description of the pass
    buffers       tensors that operators wrote: reallocated for the largest pass. Two that are not
                  live at the same time share memory, as values share the registers of a compiler

The recorded pass has 7 tokens of which 5 are outputs (`NUM_TOKENS`, `NUM_OUTPUTS`), so that the two
numbers of rows can be told apart from each other and from other sizes. Between operators there may
only be views: the result of a torch operation on an operator's output would be recorded as a
constant. So replay another pass and compare results before a tape is used.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType

import torch
from torch import Tensor

from baton.kernels.cpu.operators import (
    ROWS_OUTPUTS,
    ROWS_TOKENS,
    Args,
    Call,
    Entry,
    Pass,
    play,
    set_recording,
    signature_of,
)

NUM_TOKENS, NUM_OUTPUTS = 7, 5
"""The size of the pass that is recorded."""
ALIGNMENT = 64


class NotRecordable(ValueError):
    """The recorded calls do not make a tape."""


@dataclass(slots=True)
class _Buffer:
    """Memory that one operator wrote, and its lifetime."""

    tensor: Tensor
    first: int
    last: int
    """Numbers of the call that writes it first and of the call that touches it last."""
    bytes_per_row: int
    rows: int
    start: int = 0
    """Its offset in the memory of the tape."""

    def covers(self, address: int) -> bool:
        return 0 <= address - self.tensor.data_ptr() < self.tensor.nbytes


class Recorder:
    """Records the calls of this thread while the context is entered."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._buffers: list[_Buffer] = []
        self._by_address: list[_Buffer] = []
        self._marks: list[int] = []

    def __enter__(self) -> Recorder:
        set_recording(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        set_recording(None)

    def mark(self, layer: int) -> None:
        """An `OnLayer`: a point at which the tape can stop, because `layer` is computed."""
        self._marks.append(len(self._calls))

    def record(self, call: Call) -> None:
        number = len(self._calls)
        for tensor in call.tensors().values():
            buffer = self._find(tensor.data_ptr())
            if buffer is not None:
                buffer.last = number
        for written in call.outputs.values():
            if written is not None and self._find(written.data_ptr()) is None:
                self._add_buffer(written, number)
        self._calls.append(replace(call, rows=_rows_of(call.rows)))

    def tape(
        self,
        result: Tensor,
        *,
        max_tokens: int,
        max_outputs: int,
        given: Tensor | None = None,
        further: Sequence[Tensor] = (),
    ) -> Tape:
        """`result` is the tensor, written by an operator, for which passes are replayed; `further`
        are other wanted tensors.

        `given` is a constant that may be replaced for each pass; see `Tape.give`.
        """
        found = self._kept(result)
        kept = [self._kept(tensor) for tensor in further]
        rows = {ROWS_TOKENS: max_tokens, ROWS_OUTPUTS: max_outputs}
        memory = torch.empty(_allot(self._buffers, rows) + ALIGNMENT, dtype=torch.uint8)
        shift = -memory.data_ptr() % ALIGNMENT

        def moved(address: int | None) -> int | None:
            buffer = None if address is None else self._find(address)
            if buffer is None or address is None:
                return address
            return memory.data_ptr() + shift + buffer.start + address - buffer.tensor.data_ptr()

        args = [call.args() for call in self._calls]
        fields = [
            (each, field)
            for each, call in zip(args, self._calls, strict=True)
            for field in signature_of(call.name).tensors & call.inputs.keys()
            if given is not None and getattr(each, field) == given.data_ptr()
        ]
        for each, call in zip(args, self._calls, strict=True):
            for field in signature_of(call.name).tensors:
                setattr(each, field, moved(getattr(each, field)))

        def whole(buffer: _Buffer, tensor: Tensor) -> Tensor:
            start = shift + buffer.start
            bytes_of_all = memory[start : start + buffer.bytes_per_row * rows[buffer.rows]]
            return bytes_of_all.view(tensor.dtype).view(-1, *tensor.shape[1:])

        entries = [call.entry(each) for call, each in zip(self._calls, args, strict=True)]
        bare = [entries[number] for number in self._numbers_for(found)] if further else entries
        return Tape(
            calls=tuple(self._calls),
            args=tuple(args),
            entries=(Entry * len(entries))(*entries),
            bare_entries=(Entry * len(bare))(*bare),
            marks=tuple(self._marks),
            memory=memory,
            result=whole(found, result),
            further=tuple(map(whole, kept, further)),
            given=tuple(fields),
        )

    def _numbers_for(self, result: _Buffer) -> list[int]:
        """The numbers of the calls that are needed for `result`, or that write memory which existed
        before."""
        needed, numbers = {id(result)}, []
        for number, call in reversed(list(enumerate(self._calls))):
            written = [self._find(t.data_ptr()) for t in call.outputs.values() if t is not None]
            if written and all(buffer and id(buffer) not in needed for buffer in written):
                continue
            numbers.append(number)
            touched = (self._find(tensor.data_ptr()) for tensor in call.tensors().values())
            needed |= {id(buffer) for buffer in touched if buffer is not None}
        return numbers[::-1]

    def _kept(self, tensor: Tensor) -> _Buffer:
        """The buffer of a tensor, which is not shared until the end of the pass."""
        found = self._find(tensor.data_ptr())
        if found is None or found.tensor.data_ptr() != tensor.data_ptr():
            raise NotRecordable("no operator wrote the result")
        found.last = len(self._calls)
        return found

    def _find(self, address: int) -> _Buffer | None:
        at = bisect_right(self._by_address, address, key=_address_of) - 1
        found = self._by_address[at] if at >= 0 else None
        return found if found is not None and found.covers(address) else None

    def _add_buffer(self, tensor: Tensor, number: int) -> None:
        rows = _rows_of(len(tensor))
        buffer = _Buffer(tensor, number, number, tensor.nbytes // len(tensor), rows)
        self._buffers.append(buffer)
        insort(self._by_address, buffer, key=_address_of)


def _address_of(buffer: _Buffer) -> int:
    return buffer.tensor.data_ptr()


def _rows_of(rows: int) -> int:
    if rows not in (NUM_TOKENS, NUM_OUTPUTS):
        raise NotRecordable(f"an operator has {rows} rows: neither tokens nor outputs")
    return ROWS_TOKENS if rows == NUM_TOKENS else ROWS_OUTPUTS


def _allot(buffers: Sequence[_Buffer], rows: dict[int, int]) -> int:
    """Give each buffer the lowest offset that is free during its lifetime; returns the bytes of
    all."""
    placed: list[tuple[_Buffer, int]] = []
    for buffer in buffers:
        size = -(-buffer.bytes_per_row * rows[buffer.rows] // ALIGNMENT) * ALIGNMENT
        taken = sorted(
            (other.start, end)
            for other, end in placed
            if other.last >= buffer.first and other.first <= buffer.last
        )
        start = 0
        for begin, end in taken:
            if begin - start >= size:
                break
            start = max(start, end)
        buffer.start = start
        placed.append((buffer, start + size))
    return max((end for _, end in placed), default=0)


@dataclass(frozen=True, slots=True)
class Tape:
    calls: tuple[Call, ...]
    """Calls as recorded; they keep the constants alive."""
    args: tuple[Args, ...]
    """The arguments that replace the recorded ones."""
    entries: ctypes.Array[Entry]
    bare_entries: ctypes.Array[Entry]
    """Entries needed for `result` alone, without `further`."""
    marks: tuple[int, ...]
    """Number of calls before the end of each layer."""
    memory: Tensor
    result: Tensor
    """Where each pass leaves its result, in the first rows."""
    further: tuple[Tensor, ...]
    """Where each pass leaves the other wanted tensors."""
    given: tuple[tuple[Args, str], ...]

    def give(self, tensor: Tensor) -> None:
        """Make further passes read `tensor` where the recorded one read `given`."""
        address = tensor.data_ptr()
        for args, field in self.given:
            setattr(args, field, address)

    def play_bare(self, of: Pass) -> None:
        """Replay for `result` alone; the content of `further` is undefined afterwards."""
        play(self.bare_entries, of)

    def play(self, of: Pass, *, seconds: ctypes.Array[ctypes.c_double] | None = None) -> None:
        """Replay. `seconds` has one element per call, to which its time is added."""
        play(self.entries, of, seconds=seconds)

    def play_by_layer(self, of: Pass, on_layer: Callable[[int], None]) -> None:
        """`play`, with `on_layer` called after each layer, whose KV is in the cache then."""
        first = 0
        for layer, end in enumerate(self.marks):
            play(self.entries, of, first=first, count=end - first)
            on_layer(layer)
            first = end
        play(self.entries, of, first=first)
