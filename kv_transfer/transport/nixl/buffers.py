"""Registered memory into which NIXL reads: buffers of powers of two, used again, on the device
where this replica's KV is.

    take --> in use --> keep --> spare --> taken again, or freed: too much is spare, or the room is
                                           needed for a buffer of another size

Belongs to the thread that makes the agent's calls.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from baton.core.errors import TransferCut, TransportFailed

CPU = torch.device("cpu")
OWN = ""
"""This agent, where NIXL asks for the name of one."""
MAX_CUTS = 16
"""Prepared lists of one buffer."""
MIN_BUFFER_BYTES = 1 << 16
MAX_BUFFER_BYTES = 1 << 30
"""Registered, of one replica, in use or not; on a GPU the cache leaves as much free."""
MAX_SPARE_BYTES = 256 << 20
"""Bytes of these, kept for later: to register memory takes as long as to fill it."""


class BuffersInUse(TransferCut):
    """This replica's own reads have taken all the memory there is: no fault of the peer's."""


class Registrar(Protocol):
    """What is used of `nixl_agent`."""

    def register_memory(self, stretches: Any, mem_type: str) -> Any: ...
    def deregister_memory(self, registered: Any) -> Any: ...
    def prep_xfer_dlist(self, agent_name: str, grids: Any, mem_type: str) -> Any: ...


def place_of(device: torch.device) -> tuple[str, int]:
    """NIXL's type of memory there, and its number of the device."""
    return ("DRAM", 0) if device.type == "cpu" else ("VRAM", device.index or 0)


def bind_thread(device: torch.device) -> None:
    """Make a GPU this thread's own: UCX asks CUDA for the current one when it starts, and when
    memory is registered."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


@dataclass(frozen=True, slots=True)
class Cut:
    """The same bytes of each of the rows that lie in a buffer end to end."""

    offset: int
    """Where in its row the first of them is."""
    size: int
    row_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    memory: Tensor
    registered: Any
    """What `register_memory` answered."""
    cut_by: dict[Cut, Any] = field(default_factory=dict)
    """NIXL's prepared lists of what lies in it."""

    @property
    def num_bytes(self) -> int:
        return self.memory.numel()


class Buffers:
    def __init__(self, device: torch.device = CPU) -> None:
        self._device = device
        self._mem_type, self._index = place_of(device)
        self._stream: torch.cuda.Stream | None = None
        self.num_bytes = 0
        """Registered, in use or not."""
        self._spare: list[Buffer] = []
        """The one used last comes last."""

    def take(self, agent: Registrar, num_bytes: int) -> Buffer:
        """Raises BuffersInUse, TransportFailed for what never fits, or what the agent raises."""
        capacity = max(MIN_BUFFER_BYTES, 1 << (num_bytes - 1).bit_length())
        if capacity > MAX_BUFFER_BYTES:
            raise TransportFailed(f"NIXL: a read of {num_bytes} bytes is larger than any buffer")
        for number, spare in enumerate(self._spare):
            if spare.num_bytes == capacity:
                return self._spare.pop(number)
        while self._spare and self.num_bytes + capacity > MAX_BUFFER_BYTES:
            self._let_go(agent, self._spare.pop(0))
        if self.num_bytes + capacity > MAX_BUFFER_BYTES:
            raise BuffersInUse(f"NIXL: {self.num_bytes} bytes of buffers are in use")
        memory = self._allocated(capacity)
        stretch = memory.data_ptr(), capacity, self._index, ""
        registered = agent.register_memory([stretch], self._mem_type)
        self.num_bytes += capacity
        return Buffer(memory, registered)

    def prepared(self, agent: Registrar, buffer: Buffer, cut: Cut) -> Any:
        """NIXL's list of these bytes, row by row."""
        if cut not in buffer.cut_by:
            if len(buffer.cut_by) >= MAX_CUTS:
                buffer.cut_by.clear()
            start, count = buffer.memory.data_ptr() + cut.offset, buffer.num_bytes // cut.row_bytes
            grid = (start, cut.size, self._index, cut.row_bytes, count)
            rows = np.array([grid], dtype=np.uint64)
            buffer.cut_by[cut] = agent.prep_xfer_dlist(OWN, rows, self._mem_type)
        return buffer.cut_by[cut]

    def keep(self, agent: Registrar, buffer: Buffer) -> None:
        """Nothing writes to it, and nobody reads it, any more."""
        self._spare.append(buffer)
        while sum(spare.num_bytes for spare in self._spare) > MAX_SPARE_BYTES:
            self._let_go(agent, self._spare.pop(0))

    def clear(self) -> None:
        """The agent has gone, and what it had registered with it."""
        self._spare.clear()

    def _allocated(self, num_bytes: int) -> Tensor:
        if self._device.type != "cuda":
            return torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        # NIXL writes in no stream's order: memory that torch gave away for some other stream may
        # still be used by what was launched there. On this one nothing is ever launched.
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        try:
            with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
                return torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        except torch.OutOfMemoryError as error:
            raise BuffersInUse(f"NIXL: {self._device} has no {num_bytes} bytes left") from error

    def _let_go(self, agent: Registrar, buffer: Buffer) -> None:
        buffer.cut_by.clear()
        with suppress(Exception):  # whatever it says, nothing of ours uses the memory
            agent.deregister_memory(buffer.registered)
        self.num_bytes -= buffer.num_bytes
