"""GPTQ checkpoints (AutoGPTQ, GPTQModel, optimum), 4 and 8 bits.

    qweight  int32 [K / n, N]    packed along K, n = 32 / bits values per word
    qzeros   int32 [G, N / n]    packed along N; version 1 stores each zero point minus 1
    scales   [G, N]
    g_idx    int32 [K]           the group of each input; if absent, groups are consecutive inputs

    W[n, k] = scales[g, n] * (q[k, n] - zero[g, n]),  g = g_idx[k]

With `desc_act` inputs are grouped in order of falling importance, so the inputs of a group are not
consecutive. Version 1 is the default; `checkpoint_format` or `format` may say `gptq_v2`. The 1 is
added to whole words, because the tools that write version 1 subtract it from whole words: a zero
point of 0 borrows from its neighbour.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.core.errors import CheckpointError
from baton.engine.checkpoint.files.tensor_files import StoredEntry
from baton.engine.checkpoint.quantized.entry import QuantizedEntry, expect
from baton.engine.checkpoint.quantized.words import in_groups, per_word, unpack
from baton.engine.models.config.keys import ConfigKeys
from baton.kernels.products.quantized_groups import quantized_groups
from baton.kernels.products.quantized_weight import QuantizedWeight

ONES = {4: 0x11111111, 8: 0x01010101}
SCALES = ("F16", "BF16", "F32")


@dataclass(frozen=True, slots=True, kw_only=True)
class GptqMatrix:
    """One matrix, as `QuantizedParts`."""

    qweight: StoredEntry
    qzeros: StoredEntry
    scales: StoredEntry
    g_idx: StoredEntry | None
    bits: int
    group: int
    """Consecutive inputs that share a scale, if there is no g_idx."""
    is_less_one: bool
    """Whether qzeros holds zero points minus 1 (version 1)."""

    @property
    def parts(self) -> tuple[StoredEntry, ...]:
        small = (self.scales, self.qzeros)
        return (*small, *([self.g_idx] if self.g_idx else []), self.qweight)

    @property
    def layout_id(self) -> str:
        return f"gptq {self.bits} {self.group} {self.is_less_one}"

    @property
    def shape(self) -> tuple[int, ...]:
        num_words, num_columns = self.qweight.shape
        return num_columns, num_words * per_word(self.bits)

    def rows(self, matrix: int, rows: slice) -> Tensor:
        q = unpack(self.qweight.stored()[:, rows].T, self.bits)  # [rows, K]
        scales = self.scales.stored()[:, rows].T.float()
        groups = self._groups()
        is_plain = torch.equal(groups, torch.arange(len(groups)) // self.group)
        return in_groups(q, self._zeros(rows), scales, None if is_plain else groups)

    def quantized(self, matrix: int, dtype: torch.dtype) -> QuantizedWeight | None:
        every, groups = slice(0, self.shape[0]), self._groups()
        order = None
        if bool((groups.diff() < 0).any()):
            order = groups.argsort(stable=True)
            groups = groups[order]
        width, num_groups = len(groups), self.scales.shape[0]
        group = -(-width // num_groups)
        if not torch.equal(groups, torch.arange(width) // group):
            return None  # groups of several sizes
        q = unpack(self.qweight.stored().T, self.bits)
        items = q if order is None else q[:, order]
        zeros, scales = self._zeros(every), self.scales.stored().float().T.contiguous()
        return quantized_groups(items, scales, zeros, self.bits, dtype=dtype, order=order)

    def check(self, name: str) -> None:
        """Raise CheckpointError if the shapes or dtypes of the parts do not fit together."""
        num_columns, width = self.shape
        num_groups = -(-width // self.group)
        count = per_word(self.bits)
        expect(self.qweight, f"{name}.qweight", (width // count, num_columns), ("I32",))
        expect(self.scales, f"{name}.scales", (num_groups, num_columns), SCALES)
        expect(self.qzeros, f"{name}.qzeros", (num_groups, -(-num_columns // count)), ("I32",))
        if self.g_idx is not None:
            expect(self.g_idx, f"{name}.g_idx", (width,), ("I32",))

    def _groups(self) -> Tensor:
        """The group of each input, [K]."""
        if self.g_idx is None:
            return torch.arange(self.shape[1]) // self.group
        return self.g_idx.stored().long()

    def _zeros(self, rows: slice) -> Tensor:
        """The zero points of these outputs, uint8 [rows, G]."""
        count = per_word(self.bits)
        words = self.qzeros.stored()[:, rows.start // count : -(-rows.stop // count)]
        if self.is_less_one:
            words = words + ONES[self.bits]
        return unpack(words, self.bits)[:, : rows.stop - rows.start].T


@dataclass(frozen=True, slots=True)
class GptqLayout:
    """A `QuantizedLayout`."""

    bits: int
    group: int | None
    """Consecutive inputs that share a scale; None if all inputs of an output do."""
    is_less_one: bool
    """See `GptqMatrix`."""
    has_order: bool
    """Whether there must be a g_idx (`desc_act`)."""

    def find(self, entries: Mapping[str, StoredEntry]) -> Iterator[tuple[str, QuantizedEntry]]:
        for full_name in entries:
            name, _, last = full_name.rpartition(".")
            if last == "qweight":
                yield f"{name}.weight", QuantizedEntry(self._matrix(entries, name))

    def _matrix(self, entries: Mapping[str, StoredEntry], name: str) -> GptqMatrix:
        qweight = entries[f"{name}.qweight"]
        if len(qweight.shape) != 2:
            raise CheckpointError(f"{name}.qweight has shape {list(qweight.shape)}, not a matrix's")
        lacking = [part for part in ("qzeros", "scales") if f"{name}.{part}" not in entries]
        if self.has_order and f"{name}.g_idx" not in entries:
            lacking.append("g_idx")
        if lacking:
            raise CheckpointError(f"{name} has a qweight but lacks {', '.join(lacking)}")
        matrix = GptqMatrix(
            qweight=qweight,
            qzeros=entries[f"{name}.qzeros"],
            scales=entries[f"{name}.scales"],
            g_idx=entries.get(f"{name}.g_idx"),
            bits=self.bits,
            group=self.group or qweight.shape[0] * per_word(self.bits),
            is_less_one=self.is_less_one,
        )
        matrix.check(name)
        return matrix


def parse_gptq(keys: ConfigKeys) -> GptqLayout:
    """The layout of a quantization section. Raises CheckpointError if it is not supported."""
    bits = keys.count("bits")
    if bits not in ONES:
        raise keys.complaint("bits", "must be 4 or 8")
    formats = ("gptq", "gptq_v2")
    spelt = "checkpoint_format" if keys.value("checkpoint_format") is not None else "format"
    version = keys.choice(spelt, formats, formats[0])
    overrides = keys.value("dynamic")
    if isinstance(overrides, dict) and any(not str(rule).startswith("-:") for rule in overrides):
        raise keys.complaint("dynamic", "may only leave modules out (rules that begin with '-:')")
    return GptqLayout(
        bits=bits,
        group=parse_group(keys),
        is_less_one=version == "gptq",
        has_order=keys.flag("desc_act", False),
    )


def parse_group(keys: ConfigKeys) -> int | None:
    """The number of inputs that share a scale; None if all do, which is written as -1."""
    if keys.value("group_size", 128) == -1:
        return None
    return keys.count("group_size", 128)
