"""An echo model whose results come late, as from a GPU, under an engine with async scheduling."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from tests.echo_engines import BLOCK_SIZE, VOCAB
from torch import Tensor

from baton.core.kv_pool import Holder
from baton.engine.batch.batch import Chunk, OnLayer, ignore_layer
from baton.engine.batch.decoding import Decoding
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.engine import Engine
from baton.engine.passes.echo import EchoRunner, echo_info
from baton.engine.schedule.async_scheduling import Readback


@dataclass
class Late:
    """What a pass has yet to write, and who had the blocks when it was launched."""

    write: Callable[[], None]
    owners: dict[int, list[Holder]]


class LateRunner(EchoRunner):
    """What is not yet written is in `late`; blocks must have the same owners until it is."""

    def __init__(self, num_blocks: int, eos_token_ids: tuple[int, ...] = ()) -> None:
        info = echo_info(vocab_size=VOCAB, eos_token_ids=eos_token_ids, num_layers=2)
        super().__init__(info, num_blocks=num_blocks, block_size=BLOCK_SIZE)
        self.late: deque[Late] = deque()
        self.num_launched = 0
        self.num_written = 0
        self.spoil: set[int] = set()
        """Passes, as numbered when launched, whose first row comes out as NaN."""
        self.engine: Engine | None = None
        self._is_late = False

    def forward(self, chunks: Sequence[Chunk], on_layer: OnLayer = ignore_layer) -> Tensor:
        self.write(self.num_launched)  # passes follow each other
        self._is_late = isinstance(chunks, Decoding)
        hidden = super().forward(chunks, on_layer)
        self.num_launched += 1
        self.num_written += not self._is_late
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        logits = super().logits(hidden)
        if self.num_launched in self.spoil:
            logits[0, 3] = torch.nan
        return logits

    @torch.inference_mode()
    def write(self, num_passes: int) -> None:
        """What of the first so many passes is still to be written."""
        while self.late and self.num_written < num_passes:
            late = self.late.popleft()
            assert self._owners(late.owners) == late.owners
            late.write()
            self.num_written += 1

    def _write(self, keys: Tensor, slots: Tensor, on_layer: OnLayer) -> None:
        if not self._is_late:
            super()._write(keys, slots, on_layer)
            return
        write = super()._write
        keys, slots = keys.clone(), slots.clone()
        owners = self._owners((slots // BLOCK_SIZE).tolist())
        assert all(len(each) == 1 for each in owners.values()), "written, but shared"
        self.late.append(Late(lambda: write(keys, slots, ignore_layer), owners))

    def _owners(self, blocks: Sequence[int] | dict[int, list[Holder]]) -> dict[int, list[Holder]]:
        assert self.engine is not None
        tables = self.engine.pool.census().tables
        return {
            block: [holder for holder, table in tables.items() if block in table]
            for block in blocks
        }


class LateReadback(Readback):
    def __init__(self, values: Tensor, runner: LateRunner) -> None:
        super().__init__(values)
        self._runner, self._number = runner, runner.num_launched

    def wait(self) -> list[list[int]]:
        self._runner.write(self._number)
        return super().wait()


def late_engine(
    *,
    num_blocks: int = 256,
    eos_token_ids: tuple[int, ...] = (),
    scheduler: SchedulerConfig | None = None,
) -> tuple[Engine, LateRunner]:
    """With async scheduling unless `scheduler` says otherwise."""
    runner = LateRunner(num_blocks, eos_token_ids)
    config = EngineConfig(
        cache=CacheConfig(block_size=BLOCK_SIZE),
        scheduler=scheduler or SchedulerConfig(async_scheduling="on"),
    )
    runner.engine = Engine(runner, config)
    runner.engine._in_flight.read_back = lambda values: LateReadback(values, runner)
    return runner.engine, runner
