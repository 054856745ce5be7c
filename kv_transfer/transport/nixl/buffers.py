"""Registered memory that reads through NIXL land in: buffers of powers of two, used again.

    take --> in use --> keep --> spare --> taken again, or let go: too much is spare, or the room is
                                           needed for a buffer of another size

Belongs to the thread that makes the agent's calls.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from baton.core.errors import TransferCut, TransportFailed

MIN_BUFFER_BYTES = 1 << 16
MAX_BUFFER_BYTES = 1 << 30
"""Registered, of one replica, in use or not."""
MAX_SPARE_BYTES = 256 << 20
"""Bytes of these, kept for later: to register memory takes as long as to fill it."""


class BuffersInUse(TransferCut):
    """This replica's own reads have taken all the memory there is: no fault of the peer's."""


class Registrar(Protocol):
    """What is used of `nixl_agent`."""

    def register_memory(self, stretches: Any, mem_type: str) -> Any: ...
    def deregister_memory(self, registered: Any) -> Any: ...


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    memory: Tensor
    registered: Any
    """What `register_memory` answered."""

    @property
    def num_bytes(self) -> int:
        return self.memory.numel()


class Buffers:
    def __init__(self) -> None:
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
        memory = torch.empty(capacity, dtype=torch.uint8)
        registered = agent.register_memory([(memory.data_ptr(), capacity, 0, "")], "DRAM")
        self.num_bytes += capacity
        return Buffer(memory, registered)

    def keep(self, agent: Registrar, buffer: Buffer) -> None:
        """Nothing writes to it, and nobody reads it, any more."""
        self._spare.append(buffer)
        while sum(spare.num_bytes for spare in self._spare) > MAX_SPARE_BYTES:
            self._let_go(agent, self._spare.pop(0))

    def clear(self) -> None:
        """The agent has gone, and what it had registered with it."""
        self._spare.clear()

    def _let_go(self, agent: Registrar, buffer: Buffer) -> None:
        with suppress(Exception):  # whatever it says, nothing of ours uses the memory
            agent.deregister_memory(buffer.registered)
        self.num_bytes -= buffer.num_bytes
