"""compressed-tensors checkpoints (llm-compressor, vLLM): integer or e4m3 weights.

    X.weight         int8 [N, K]             `int-quantized`; W = q * scale
    X.weight         F8_E4M3 [N, K]          `float-quantized`, see fp8.py
    X.weight_packed  int32 [N, K / n]        `pack-quantized`, 4 or 8 bits, n = 32 / bits per word;
    X.weight_shape   int64 [2]               W = (q - zero) * scale, with unsigned q and zero
    X.weight_packed  uint8 [N, K / 2]        `mxfp4-pack-quantized`, see mxfp4.py

    X.weight_scale        one number, [N, 1], or [N, G] for groups along K
    X.weight_zero_point   int32 [N / n, G], packed along N; the middle of the range if absent
    X.weight_g_idx        int32 [K]: the group of each input, if groups are not consecutive inputs

The configuration has a scheme for each group of modules. Bits and groups are derived from the
tensors; only what these do not show is read from the configuration. Modules under `ignore` are not
quantized.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.core.errors import CheckpointError
from baton.engine.checkpoint.files.tensor_files import StoredEntry
from baton.engine.checkpoint.quantized.entry import QuantizedEntry, expect
from baton.engine.checkpoint.quantized.fp8 import E4M3, fp8_matrix, parse_block
from baton.engine.checkpoint.quantized.mxfp4 import packed_mxfp4
from baton.engine.checkpoint.quantized.words import in_groups, per_word, unpack
from baton.engine.models.config.description import unsupported
from baton.engine.models.config.keys import ConfigKeys
from baton.kernels.products.quantized_groups import quantized_groups
from baton.kernels.products.quantized_weight import QuantizedWeight

FORMATS = (
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "pack-quantized",
    "mxfp4-pack-quantized",
    "mixed-precision",
    "dense",
)
SCALES = ("F16", "BF16", "F32")
BITS = (4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeNumbers:
    """One matrix of int8 or packed integers, as `QuantizedParts`."""

    items: StoredEntry
    scale: StoredEntry
    zero: StoredEntry | None
    g_idx: StoredEntry | None
    declared: StoredEntry | None
    """The shape of a packed weight, [2]."""
    width: int
    bits: int

    @property
    def parts(self) -> tuple[StoredEntry, ...]:
        optional = (part for part in (self.declared, self.zero, self.g_idx) if part is not None)
        return (self.scale, *optional, self.items)

    @property
    def layout_id(self) -> str:
        zero, g_idx = self.zero is not None, self.g_idx is not None
        return f"compressed {self.items.dtype} {self.bits} {self.width} {zero} {g_idx}"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.items.shape[0], self.width

    def rows(self, matrix: int, rows: slice) -> Tensor:
        zero = self._zeros(rows)
        middle = 1 << self.bits - 1
        groups = None if self.g_idx is None else self.g_idx.stored().long()
        zeros = middle if zero is None else zero
        return in_groups(self._items(rows), zeros, self._scales(rows), groups)

    def quantized(self, matrix: int, dtype: torch.dtype) -> QuantizedWeight | None:
        if self.g_idx is not None:
            return None
        every = slice(0, self.shape[0])
        scales = self._scales(every).contiguous()
        return quantized_groups(
            self._items(every), scales, self._zeros(every), self.bits, dtype=dtype
        )

    def check(self, name: str) -> None:
        """Raise CheckpointError if the shapes or dtypes of the parts do not fit together."""
        rows, num_groups = self.shape[0], self._num_groups()
        packed = self.items.dtype != "I8"
        if packed:
            words = -(-self.width // per_word(self.bits))
            expect(self.items, f"{name}_packed", (rows, words), ("I32",))
        shapes = ((rows, num_groups), (rows,), (1,), ())
        if self.scale.shape not in shapes or self.scale.dtype not in SCALES:
            expect(self.scale, f"{name}_scale", (rows, num_groups), SCALES)
        if num_groups == 0 or self.width % num_groups:
            raise CheckpointError(f"{name}: {num_groups} groups do not divide {self.width} inputs")
        if self.zero is not None:
            count = per_word(self.bits) if packed else 1
            wanted = (-(-rows // count), num_groups)
            expect(self.zero, f"{name}_zero_point", wanted, ("I32",) if packed else ("I8",))
        if self.g_idx is not None:
            expect(self.g_idx, f"{name}_g_idx", (self.width,), ("I32",))

    def _num_groups(self) -> int:
        return self.scale.shape[1] if len(self.scale.shape) == 2 else 1

    def _items(self, rows: slice) -> Tensor:
        """The weights' integers, uint8 [rows, K]; int8 is shifted by 128."""
        items = self.items.stored()[rows]
        if items.dtype is torch.int8:
            return items.view(torch.uint8) ^ 128
        return unpack(items, self.bits)[:, : self.width]

    def _scales(self, rows: slice) -> Tensor:
        """The scales of groups, float32 [rows, G]."""
        scales = self.scale.stored().float()
        if scales.numel() == 1:
            return scales.view(1, 1).expand(rows.stop - rows.start, 1)
        return scales.view(self.shape[0], -1)[rows]

    def _zeros(self, rows: slice) -> Tensor | None:
        """The zero points of groups, uint8 [rows, G]; None for the middle of the range."""
        if self.zero is None:
            return None
        stored = self.zero.stored()
        if stored.dtype is torch.int8:
            return stored[rows].view(torch.uint8) ^ 128
        count = per_word(self.bits)
        words = stored[rows.start // count : -(-rows.stop // count)]
        return unpack(words.T, self.bits).T[: rows.stop - rows.start]


@dataclass(frozen=True, slots=True)
class CompressedLayout:
    """A `QuantizedLayout`."""

    block: tuple[int, int] | None
    """Outputs and inputs that share a scale, for e4m3 weights in blocks."""

    def find(self, entries: Mapping[str, StoredEntry]) -> Iterator[tuple[str, QuantizedEntry]]:
        for full_name, entry in entries.items():
            name = full_name.removesuffix("_packed")
            if full_name.endswith(".weight_packed") and entry.dtype == "U8":
                yield name, QuantizedEntry(packed_mxfp4(entries, name))
            elif full_name.endswith(".weight_packed"):
                yield name, QuantizedEntry(_whole_numbers(entries, name, full_name))
            elif entry.dtype == E4M3:
                yield full_name, QuantizedEntry(fp8_matrix(entries, full_name, self.block))
            elif entry.dtype == "I8" and full_name.endswith(".weight"):
                yield full_name, QuantizedEntry(_whole_numbers(entries, full_name, full_name))


def _whole_numbers(entries: Mapping[str, StoredEntry], name: str, items_name: str) -> WholeNumbers:
    """The matrix `name`. Raises CheckpointError if parts are missing or do not fit together."""
    items, scale = entries[items_name], entries.get(f"{name}_scale")
    if scale is None or len(items.shape) != 2:
        raise CheckpointError(f"{items_name} {list(items.shape)} is no matrix with {name}_scale")
    width, bits, declared = items.shape[1], 8, None
    if items.dtype != "I8":
        declared = entries.get(f"{name}_shape")
        if declared is None or declared.shape != (2,):
            raise CheckpointError(f"{items_name} has no {name}_shape of two numbers beside it")
        width = int(declared.stored()[1])
        bits = 32 * items.shape[1] // max(1, width)
        if bits not in BITS:
            raise CheckpointError(f"{items_name} has items of {bits} bits; supported are 4 and 8")
    weight = WholeNumbers(
        items=items,
        scale=scale,
        zero=entries.get(f"{name}_zero_point"),
        g_idx=entries.get(f"{name}_g_idx"),
        declared=declared,
        width=width,
        bits=bits,
    )
    weight.check(name)
    return weight


def parse_compressed(keys: ConfigKeys) -> CompressedLayout:
    """The layout of a quantization section. Raises CheckpointError if it is not supported."""
    keys.choice("format", FORMATS, "dense")
    if keys.value("transform_config"):
        raise unsupported(
            f"`{keys.name('transform_config')}` is given, and rotated weights are not supported"
        )
    schemes = keys.value("config_groups", {})
    if not isinstance(schemes, Mapping):
        raise keys.complaint("config_groups", "must be an object")
    blocks = {_block_of(name, scheme) for name, scheme in schemes.items()} - {None}
    if len(blocks) > 1:
        raise keys.complaint("config_groups", "must have one `block_structure`")
    return CompressedLayout(next(iter(blocks), None))


def _block_of(name: str, scheme: object) -> tuple[int, int] | None:
    """The `block_structure` of a scheme. Raises CheckpointError for unsupported kinds of
    weights."""
    weights = scheme.get("weights") if isinstance(scheme, Mapping) else None
    if not isinstance(weights, Mapping):
        return None
    keys = ConfigKeys(weights, path=f"quantization_config.config_groups.{name}.weights.")
    keys.choice("type", ("int", "float"), "int")
    if keys.value("type", "int") == "float" and keys.count("num_bits") not in BITS:
        raise keys.complaint("num_bits", "must be 4 or 8")
    return parse_block(keys, "block_structure")
