"""Memory of another process that NIXL may read: P's, where it can be killed."""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch
from tests.warm_processes import warm_processes

from baton.kv_transfer.transport.nixl.reads import new_agent


@dataclass(frozen=True)
class FarMemory:
    metadata: bytes
    stretch: tuple[int, int, int]
    """Address, length in bytes, number of the device."""


class FarPeer:
    """Every byte of its memory is 7."""

    def __init__(self, num_bytes: int) -> None:
        warm = warm_processes()
        pipe, theirs = warm.Pipe()
        self.process = warm.Process(target=_lie_open, args=(theirs, num_bytes), daemon=True)
        self.process.start()
        self.memory: FarMemory = pipe.recv()
        self._pipe = pipe  # its end is the other's end

    def end(self) -> None:
        self.process.kill()
        self.process.join()


def _lie_open(pipe: Connection, num_bytes: int) -> None:
    memory = torch.full((num_bytes,), 7, dtype=torch.uint8)
    agent = new_agent("far")
    agent.register_memory([(memory.data_ptr(), num_bytes, 0, "")], "DRAM")
    pipe.send(FarMemory(agent.get_agent_metadata(), (memory.data_ptr(), num_bytes, 0)))
    pipe.recv()
