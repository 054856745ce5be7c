"""What of a quantised checkpoint stays in few bits, because the device multiplies it so.

    GPU    int8, groups of int4 (with zeros, in any order of inputs), e4m3, MXFP4    as stored
    CPU    int8 with one scale an output                                             as stored
           int4 in groups of some times 32, symmetric                    scales in bfloat16
    else   as wide as the model computes

Matrices that are multiplied as one stay only if all of them can, and so do the experts of a layer.
A CPU rounds activations to eight bits where weights are whole numbers, a GPU to e4m3 where they
are, so what stays is another model to whoever shares KV: it says so by its `rounding`.
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
    """Installs those entries of one checkpoint that stay in few bits on one device."""

    def __init__(
        self,
        placements: Sequence[WeightPlacement],
        entries: Mapping[str, TensorEntry],
        dtype: torch.dtype,
        device: str,
        quantize: str,
        *,
        is_fixed: bool = False,
    ) -> None:
        """`is_fixed`: what a GPU multiplies a row by gives the same beside any others."""
        self._entries = entries
        self._dtype = dtype
        self._device = device
        self._keeps = quantize == "none"
        self._is_fixed = is_fixed
        self._sources_of: dict[str, list[str]] = defaultdict(list)
        self._meanings: dict[str, set[str | None]] = defaultdict(set)
        """Meanings of the bits that each target is made of; None for parts that are not
        quantised."""
        for placement in placements:
            entry = entries[placement.source]
            meaning = entry.bits.meaning if isinstance(entry, QuantizedEntry) else None
            self._sources_of[placement.target].append(placement.source)
            self._meanings[placement.target].add(meaning)
        self._experts_stay: dict[str, bool] = {}
        """Whether experts stay quantised, by target; the first expert decides."""
        self._num_bytes: dict[str, int] = {}
        """Bytes, by target."""

    def install(self, model: nn.Module, target: str, sources: Sequence[WeightPlacement]) -> bool:
        """Make the weight called `target`, or what one expert has of it, of few bits.

        Nothing happens if that cannot be.
        """
        prefix, _, name = target.rpartition(".")
        module = model.get_submodule(prefix)
        meanings = self._meanings[target]
        if not self._keeps or None in meanings:
            return False
        if isinstance(module, Linear) and name == "weight" and not module.is_exact:
            return self._install_matrix(module, target, sources)
        if isinstance(module, Experts) and name in (GATE_UP, DOWN) and len(meanings) == 1:
            return self._install_expert(module, target, sources)
        return False

    @property
    def has_installed(self) -> bool:
        """Whether something stayed in few bits."""
        return bool(self._num_bytes)

    def rounding(self, *, is_of_experts: bool = False) -> str:
        """A word for what products round, where something stayed in few bits: experts, or all."""
        kind = torch.device(self._device).type
        return f"as stored {kind}, experts" if is_of_experts else f"as stored {kind}"

    def report(self) -> None:
        """Say what became of the checkpoint."""
        prepared = {source for target in self._num_bytes for source in self._sources_of[target]}
        found = {n: e for n, e in self._entries.items() if isinstance(e, QuantizedEntry)}
        wide = [entry for name, entry in found.items() if name not in prepared]
        if prepared:
            num_bytes = sum(self._num_bytes.values())
            logger.info("%d tensors stay in few bits: %.1f MB", len(prepared), num_bytes / 1e6)
        if wide:
            num_items = sum(torch.Size(entry.shape).numel() for entry in wide)
            logger.info(
                "%d quantised tensors are widened to %s: %.1f MB become %.1f MB",
                len(wide),
                str(self._dtype).removeprefix("torch."),
                sum(entry.num_bytes for entry in wide) / 1e6,
                num_items * self._dtype.itemsize / 1e6,
            )
        if wide and self._device == "cpu" and self._dtype not in operators.SUFFIXES:
            logger.warning("nothing is compiled for this dtype; with dtype bfloat16 it is faster")

    def _install_matrix(
        self, module: Linear, target: str, sources: Sequence[WeightPlacement]
    ) -> bool:
        quantized = self._quantized(sources)
        if quantized is None:
            return False
        prepared = (
            on_cpu(quantized, is_gated=module.is_gated)
            if self._device == "cpu"
            else replace(quantized.to(self._device), is_fixed=self._is_fixed)
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
        """Raises CheckpointError if it is of another kind than the first, which stays."""
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
    """Raises ValueError."""
    if isinstance(room, QuantizedExperts):
        if quantized is None:
            raise ValueError("no kernel multiplies it as it is stored")
        room.put(expert, quantized)
        return
    if quantized is None or not is_for_cpu(quantized):
        raise ValueError("no operator multiplies it as it is stored")
    put_on_cpu(room, expert, quantized)
