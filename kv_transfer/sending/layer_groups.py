"""Which layers of a pass are sent together: each sending costs time at both ends and in the pass.

layer 0, 1, 2 | 3, 4, 5 | 6, 7      each group but the last has `min_bytes` or more

The first token waits for the last layer, which is the shortest: of a prompt it computes only the
outputs that are wanted. So a group that would leave beside it alone must be larger than others.
Otherwise it joins the last one, which leaves behind the first token.
"""

from __future__ import annotations

from baton.core.kv_layout import KvLayout

MIN_BYTES = 2 << 20
"""Less is sent in about the time that a leaving costs. Of a long prompt on a GPU each layer is
more."""

LATE_FACTOR = 1.25
"""A group that leaves beside the last layer has this many times `min_bytes` at least. Joined to the
last one, a smaller group saves the first token time and costs the second none; 3 MiB cost it 6 ms
(docs/measurements/2026-11-29.md)."""


class LayerGroups:
    """Layers of one pass after the other, each told of from layer 0 on."""

    def __init__(self, layout: KvLayout) -> None:
        self.min_bytes = MIN_BYTES
        """May be replaced: where models are tiny, and layers are to leave all the same."""
        self._num_layers = layout.num_layers
        block_bytes = [plane.layer_block_bytes for plane in layout.planes]
        self._token_bytes = [
            sum(block_bytes[plane] for plane in layout.planes_of(layer)) / layout.block_size
            for layer in range(layout.num_layers + 1)
        ]
        self._first = 0
        self._num_bytes = 0.0

    def are_last(self, layers: range) -> bool:
        """Whether nothing of the model follows behind them in the pass."""
        return layers.stop >= self._num_layers

    def computed(self, layer: int, num_tokens: int) -> range:
        """The layers that leave now that `layer` is computed; none: more are to come with them.

        `num_tokens` are all of the pass; `layer` may be what is behind the last (`planes_of`).
        """
        if layer == 0:
            self._first, self._num_bytes = 0, 0.0
        self._num_bytes += num_tokens * self._token_bytes[layer]
        num_behind = self._num_layers - 1 - layer
        if num_behind > 0 and self._num_bytes < self._least_bytes(num_behind):
            return range(0)
        leaving = range(self._first, layer + 1)
        self._first, self._num_bytes = layer + 1, 0.0
        return leaving

    def _least_bytes(self, num_behind: int) -> float:
        """Bytes that leave while `num_behind` further layers are computed, at least."""
        return self.min_bytes * (LATE_FACTOR if num_behind == 1 else 1)
