"""What graphs are captured of: a model over its cache, on all ranks that compute it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from baton.engine.batch.batch import Batch, Chunk, ignore_layer
from baton.engine.batch.static_batch import PassLimits
from baton.engine.memory.kv_cache import KvCache
from baton.engine.mesh.attempt import tried_by_all
from baton.engine.mesh.ranks import ALONE, Ranks
from baton.engine.models.skeleton.decoder import Decoder
from baton.engine.models.skeleton.taps import AuxHiddenStates
from baton.engine.passes.graph_capture import Capture, Graph, Outputs, launched_by_all


@dataclass(frozen=True, slots=True, eq=False)
class CapturedModel:
    model: Decoder
    cache: KvCache
    spare_block: int
    """The block of `cache` that rows for nobody write to; no pool counts it."""
    capture: Capture
    taps: AuxHiddenStates | None = None
    """Taps that are in all graphs: what they copy, where nobody reads it, takes less than graphs
    without them would."""
    ranks: Ranks = ALONE
    """The ranks that capture at once, this one included."""

    @property
    def block_size(self) -> int:
        return self.cache.layout.block_size

    def max_context(self, limits: PassLimits) -> int:
        """Tokens of a request that a graph within such limits may have."""
        longest, positions = limits.max_blocks * self.block_size, self.model.positions
        return longest if positions is None else min(longest, positions.size)

    def nobody(self, run: int) -> Chunk:
        """The chunk of a request that is none, of `run` tokens."""
        return Chunk((0,) * run, 0, (self.spare_block,) * -(-run // self.block_size), run)

    def run_of(self, batch: Batch, max_blocks: int, *, has_logits: bool) -> Callable[[], Outputs]:
        """The pass of `batch`, whose requests may become as long as `max_blocks` hold: grids that
        follow from lengths then fit all passes, and what is beyond a context ends at once."""
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
        """The graph of `run`, which all ranks capture at once, or none of them does.

        Raises RuntimeError if one cannot, torch.OutOfMemoryError if all it lacks is memory; and
        what `launched_by_all` raises.
        """
        with launched_by_all(self.ranks):
            self.capture.prepare(run)
        with tried_by_all(self.ranks):
            made = self.capture(run)
        return made
