"""Installs weights of a quantized checkpoint that stay quantized, where the device can multiply
them.

    GPU          int8, int4 in groups (with zero points, any order of inputs),
                 e4m3, MXFP4                                                     as stored
    CPU          int8 with one scale per output                                  as stored
                 int4 in groups of a multiple of 32, symmetric                   scales in bfloat16
    otherwise    dequantized to the dtype in which the model computes

Matrices that are multiplied as one stay quantized only if all of them can, and so do the experts of
a layer. A CPU quantizes activations to 8 bits for integer weights, a GPU to e4m3 for e4m3 weights.
Results therefore differ from those of the dequantized model, so it has another fingerprint, by its
`rounding`, and KV is not shared between both.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from baton.core.errors import CheckpointError
from baton.engine.checkpoint.files.tensor_files import TensorEntry
from baton.engine.checkpoint.quantized.entry import QuantizedEntry
from baton.engine.checkpoint.quantized.on_cpu import experts_on_cpu, is_for_cpu, on_cpu, put_on_cpu
from baton.engine.layers.linear import Linear
from baton.engine.layers.moe import DOWN, GATE_UP, Experts
from baton.engine.models.config.arrangement import (
    ALTERNATING,
    AS_IS,
    TRANSPOSED,
    TRANSPOSED_ALTERNATING,
)
from baton.engine.sharding.placement import WeightPlacement
from baton.kernels.cpu import operators
from baton.kernels.experts import quantized_experts as quantized_experts
from baton.kernels.experts.packed_quantized_experts import PackedQuantizedExperts
from baton.kernels.experts.quantized_experts import QuantizedExperts
from baton.kernels.products.quantized_groups import rows_of, stack
from baton.kernels.products.quantized_weight import QuantizedWeight

logger = logging.getLogger(__name__)


class QuantizedInstaller:
    """Installs the weights of one checkpoint that stay quantized on one device."""

    def __init__(
        self,
        placements: Sequence[WeightPlacement],
        entries: Mapping[str, TensorEntry],
        dtype: torch.dtype,
        device: str,
        quantize: str,
        *,
        is_batch_invariant: bool = False,
    ) -> None:
        """`is_batch_invariant`: use products whose rows do not depend on the rest of the batch
        (`deterministic`)."""
        self._entries = entries
        self._dtype = dtype
        self._device = device
        self._keeps = quantize == "none"
        self._is_batch_invariant = is_batch_invariant
        self._sources_of: dict[str, list[str]] = defaultdict(list)
        self._layout_ids: dict[str, set[str | None]] = defaultdict(set)
        """By target: the layouts of its sources (`QuantizedParts.layout_id`); None for a source
        that is not quantized."""
        for placement in placements:
            entry = entries[placement.source]
            layout_id = entry.stored.layout_id if isinstance(entry, QuantizedEntry) else None
            self._sources_of[placement.target].append(placement.source)
            self._layout_ids[placement.target].add(layout_id)
        self._experts_stay: dict[str, bool] = {}
        """By target: whether experts stay quantized; decided by the first expert."""
        self._num_bytes: dict[str, int] = {}
        """By target: bytes of what stays quantized."""

    def install(self, model: nn.Module, target: str, sources: Sequence[WeightPlacement]) -> bool:
        """Install the weight called `target`, or one expert of it, in quantized form. Returns
        False, and does nothing, if that is not possible. Raises CheckpointError if an expert
        differs in kind from the first one of its layer."""
        prefix, _, name = target.rpartition(".")
        module = model.get_submodule(prefix)
        layout_ids = self._layout_ids[target]
        if not self._keeps or None in layout_ids:
            return False
        if isinstance(module, Linear) and name == "weight" and not module.is_exact:
            return self._install_matrix(module, target, sources)
        if isinstance(module, Experts) and name in (GATE_UP, DOWN) and len(layout_ids) == 1:
            return self._install_expert(module, target, sources)
        return False

    @property
    def has_installed(self) -> bool:
        """Whether any weight stayed quantized."""
        return bool(self._num_bytes)

    def rounding(self, *, is_of_experts: bool = False) -> str:
        """Part of the fingerprint if something stayed quantized: only experts, or any weights."""
        kind = torch.device(self._device).type
        return f"as stored {kind}, experts" if is_of_experts else f"as stored {kind}"

    def report(self) -> None:
        """Log which weights stayed quantized and which were dequantized."""
        prepared = {source for target in self._num_bytes for source in self._sources_of[target]}
        found = {n: e for n, e in self._entries.items() if isinstance(e, QuantizedEntry)}
        wide = [entry for name, entry in found.items() if name not in prepared]
        if prepared:
            num_bytes = sum(self._num_bytes.values())
            logger.info("%d tensors stay quantized: %.1f MB", len(prepared), num_bytes / 1e6)
        if wide:
            num_items = sum(torch.Size(entry.shape).numel() for entry in wide)
            logger.info(
                "%d quantized tensors are dequantized to %s: %.1f MB become %.1f MB",
                len(wide),
                str(self._dtype).removeprefix("torch."),
                sum(entry.num_bytes for entry in wide) / 1e6,
                num_items * self._dtype.itemsize / 1e6,
            )
        if wide and self._device == "cpu" and self._dtype not in operators.SUFFIXES:
            logger.warning("there are no compiled kernels for this dtype; dtype bfloat16 is faster")

    def _install_matrix(
        self, module: Linear, target: str, sources: Sequence[WeightPlacement]
    ) -> bool:
        quantized = self._quantized(sources)
        if quantized is None:
            return False
        prepared = (
            on_cpu(quantized, is_gated=module.is_gated)
            if self._device == "cpu"
            else replace(quantized.to(self._device), is_batch_invariant=self._is_batch_invariant)
        )
        if prepared is None:
            return False
        del module.weight
        module.weight = prepared
        self._num_bytes[target] = prepared.nbytes
        return True

    def _install_expert(
        self, module: Experts, target: str, sources: Sequence[WeightPlacement]
    ) -> bool:
        """Install one expert. Raises CheckpointError if it differs in kind from the first one of
        its layer, which stayed quantized."""
        if self._experts_stay.get(target) is False:
            return False
        name, slot = target.rpartition(".")[2], sources[0].slot
        assert slot is not None
        quantized = self._quantized(sources)
        if target not in self._experts_stay:
            room = None if quantized is None else self._room(module, name, quantized)
            self._experts_stay[target] = room is not None
            if room is None:
                return False
            delattr(module, name)
            setattr(module, name, room)
            self._num_bytes[target] = room.nbytes
        try:
            _put(getattr(module, name), slot, quantized)
        except ValueError as error:
            raise CheckpointError(
                f"{sources[0].source}: {error}; serve this checkpoint with quantize: wide"
            ) from error
        return True

    def _room(
        self, module: Experts, name: str, first: QuantizedWeight
    ) -> PackedQuantizedExperts | QuantizedExperts | None:
        if self._device == "cpu":
            return experts_on_cpu(module.num_slots, first, is_gated=name == GATE_UP)
        if first.order is not None:
            return None
        return quantized_experts.empty_like(module.num_slots, first, self._device)

    def _quantized(self, sources: Sequence[WeightPlacement]) -> QuantizedWeight | None:
        found = []
        for source in sources:
            quantized = self._one(source)
            if quantized is None:
                return None
            found.append(quantized)
        return stack(found)

    def _one(self, source: WeightPlacement) -> QuantizedWeight | None:
        entry = self._entries[source.source]
        assert isinstance(entry, QuantizedEntry)
        matrix = source.expert if source.is_of_stack and source.expert is not None else 0
        as_rows = TRANSPOSED if entry.is_transposed else AS_IS
        by_turns = TRANSPOSED_ALTERNATING if entry.is_transposed else ALTERNATING
        if source.arrangement not in (as_rows, by_turns):
            return None
        quantized = entry.quantized(self._dtype, matrix)
        if quantized is None or source.arrangement == as_rows:
            return quantized
        rows = torch.arange(quantized.shape[0])
        return rows_of(quantized, torch.cat([rows[::2], rows[1::2]]))


def _put(
    room: PackedQuantizedExperts | QuantizedExperts, expert: int, quantized: QuantizedWeight | None
) -> None:
    """Raises ValueError if the weight is of another kind than there is memory for."""
    if isinstance(room, QuantizedExperts):
        if quantized is None:
            raise ValueError("there is no kernel for it in its stored form")
        room.put(expert, quantized)
        return
    if quantized is None or not is_for_cpu(quantized):
        raise ValueError("there is no CPU operator for it in its stored form")
    put_on_cpu(room, expert, quantized)
