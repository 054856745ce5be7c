"""The model, cache and ranks that CUDA graphs are captured from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from baton.engine.batch.batch import Batch, Chunk, ignore_layer
from baton.engine.batch.static_batch import PassLimits
from baton.engine.memory.kv_cache import KvCache
from baton.engine.mesh.attempt import collective_attempt
from baton.engine.mesh.ranks import ALONE, Ranks
from baton.engine.models.skeleton.decoder import Decoder
from baton.engine.models.skeleton.taps import AuxHiddenStates
from baton.engine.passes.graph_capture import Capture, Graph, Outputs, collective_launch


@dataclass(frozen=True, slots=True, eq=False)
class CapturedModel:
    """A model over its KV cache, from which graphs of passes are captured."""

    model: Decoder
    cache: KvCache
    spare_block: int
    """The block of `cache` that padding rows write to; it belongs to no pool."""
    capture: Capture
    taps: AuxHiddenStates | None = None
    """Hidden states that all graphs copy out. Copying them when nobody reads them costs less than a
    second set of graphs without them would."""
    ranks: Ranks = ALONE
    """The ranks that capture together, this one included."""

    @property
    def block_size(self) -> int:
        return self.cache.layout.block_size

    def max_context(self, limits: PassLimits) -> int:
        """Most tokens of a request in a graph within these limits."""
        longest, positions = limits.max_blocks * self.block_size, self.model.positions
        return longest if positions is None else min(longest, positions.size)

    def padding(self, run: int) -> Chunk:
        """A padding chunk of `run` tokens, which belongs to no request and writes to the spare
        block."""
        return Chunk((0,) * run, 0, (self.spare_block,) * -(-run // self.block_size), run)

    def run_of(self, batch: Batch, max_blocks: int, *, has_logits: bool) -> Callable[[], Outputs]:
        """A function that runs the pass of `batch`, to be captured. Kernels are launched with grids
        for contexts of `max_blocks` blocks, so that the graph fits any pass; parts beyond a
        request's real context return at once."""
        sequences = batch.sequences
        tables = sequences.block_tables
        shape, start = (len(tables), max_blocks), tables.storage_offset()
        longest = replace(
            sequences,
            block_tables=tables.as_strided(shape, tables.stride(), start),
            max_context_len=max_blocks * self.block_size,
        )
        batch = replace(batch, sequences=longest)
        own = None if self.taps is None else AuxHiddenStates(self.taps.layers)

        def run() -> Outputs:
            hidden = self.model(batch, self.cache.layers, ignore_layer, own)
            logits = (self.model.logits(hidden),) if has_logits else ()
            return (hidden, *logits, *(() if own is None else own.found))

        return run

    def graph_of(self, run: Callable[[], Outputs]) -> tuple[Graph, Outputs]:
        """The graph of `run` and its outputs. All ranks capture together; if one fails, none has
        the graph.

        Raises torch.OutOfMemoryError if a rank lacks memory, RuntimeError if it fails for another
        reason, and what `collective_launch` raises.
        """
        with collective_launch(self.ranks):
            self.capture.prepare(run)
        with collective_attempt(self.ranks):
            made = self.capture(run)
        return made
