"""AWQ checkpoints (AutoAWQ), version `gemm`, 4 bits.

    qweight  int32 [K, N / 8]       qzeros  int32 [G, N / 8]       scales  [G, N]

    W[n, k] = scales[k / group, n] * (q[k, n] - zero[k / group, n])

A word holds 8 consecutive outputs, from its lowest bits on in the order 0, 2, 4, 6, 1, 3, 5, 7.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.core.errors import CheckpointError
from baton.engine.checkpoint.files.tensor_files import StoredEntry
from baton.engine.checkpoint.quantized.entry import QuantizedEntry, expect
from baton.engine.checkpoint.quantized.gptq import SCALES, parse_group
from baton.engine.checkpoint.quantized.words import in_groups, octets_of
from baton.engine.models.config.keys import ConfigKeys
from baton.kernels.products.quantized_groups import quantized_groups
from baton.kernels.products.quantized_weight import QuantizedWeight

BITS, PER_WORD = 4, 8
PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""By output: its place in the word, from the lowest bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwqMatrix:
    """One matrix, as `QuantizedParts`."""

    qweight: StoredEntry
    qzeros: StoredEntry
    scales: StoredEntry
    group: int

    @property
    def parts(self) -> tuple[StoredEntry, ...]:
        return self.scales, self.qzeros, self.qweight

    @property
    def layout_id(self) -> str:
        return f"awq gemm {self.group}"

    @property
    def shape(self) -> tuple[int, ...]:
        width, num_words = self.qweight.shape
        return num_words * PER_WORD, width

    def rows(self, matrix: int, rows: slice) -> Tensor:
        scales = self.scales.stored()[:, rows].T.float()
        return in_groups(_items(self.qweight, rows), _items(self.qzeros, rows), scales)

    def quantized(self, matrix: int, dtype: torch.dtype) -> QuantizedWeight | None:
        every = slice(0, self.shape[0])
        items, zeros = _items(self.qweight, every), _items(self.qzeros, every)
        scales = self.scales.stored().float().T.contiguous()
        return quantized_groups(items, scales, zeros, BITS, dtype=dtype)

    def check(self, name: str) -> None:
        """Raise CheckpointError if the shapes or dtypes of the parts do not fit together."""
        num_columns, width = self.shape
        num_groups = -(-width // self.group)
        expect(self.qweight, f"{name}.qweight", (width, num_columns // PER_WORD), ("I32",))
        expect(self.qzeros, f"{name}.qzeros", (num_groups, num_columns // PER_WORD), ("I32",))
        expect(self.scales, f"{name}.scales", (num_groups, num_columns), SCALES)


def _items(words: StoredEntry, rows: slice) -> Tensor:
    """The 4-bit numbers of these outputs, uint8 [rows, K or G]."""
    some = words.stored()[:, rows.start // PER_WORD : rows.stop // PER_WORD].T
    octets = octets_of(some)  # [rows / 8, K, 4]
    items = torch.empty(len(some), PER_WORD, some.shape[1], dtype=torch.uint8)
    for output, place in enumerate(PLACES):
        octet = octets[:, :, place // 2]
        items[:, output] = octet >> 4 if place % 2 else octet & 15
    return items.flatten(0, 1)


@dataclass(frozen=True, slots=True)
class AwqLayout:
    """A `QuantizedLayout`."""

    group: int | None
    """Consecutive inputs that share a scale; None if all inputs of an output do."""

    def find(self, entries: Mapping[str, StoredEntry]) -> Iterator[tuple[str, QuantizedEntry]]:
        for full_name in entries:
            name, _, last = full_name.rpartition(".")
            if last == "qweight":
                yield f"{name}.weight", QuantizedEntry(self._matrix(entries, name))

    def _matrix(self, entries: Mapping[str, StoredEntry], name: str) -> AwqMatrix:
        qweight = entries[f"{name}.qweight"]
        lacking = [part for part in ("qzeros", "scales") if f"{name}.{part}" not in entries]
        if len(qweight.shape) != 2 or lacking:
            what = f"lacks {', '.join(lacking)}" if lacking else "is no matrix"
            raise CheckpointError(f"{name}.qweight {what}; the checkpoint is incomplete")
        matrix = AwqMatrix(
            qweight=qweight,
            qzeros=entries[f"{name}.qzeros"],
            scales=entries[f"{name}.scales"],
            group=self.group or qweight.shape[0],
        )
        matrix.check(name)
        return matrix


def parse_awq(keys: ConfigKeys) -> AwqLayout:
    """The layout of a quantization section. Raises CheckpointError if it is not supported."""
    if keys.count("bits") != BITS:
        raise keys.complaint("bits", f"must be {BITS}")
    for spelt in ("version", "format"):
        if str(keys.value(spelt, "gemm")).lower() != "gemm":
            raise keys.complaint(spelt, "must be 'gemm'; convert it with AutoAWQ")
    if not keys.flag("zero_point", True):
        raise keys.complaint("zero_point", "must be true")
    return AwqLayout(parse_group(keys))
