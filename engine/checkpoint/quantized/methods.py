"""Quantized checkpoints: presents their tensors under the names of an unquantized checkpoint.

    config.json   "quantization_config": {"quant_method": "gptq", "bits": 4, ...}
    files         X.qweight, X.qzeros, X.scales, X.g_idx, Y.weight
    as here       X.weight,                               Y.weight

Which modules are quantized is seen from their tensors, so `modules_to_not_convert` and similar keys
need not be read. Each layout has a file of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Protocol

from baton.core.errors import CheckpointError
from baton.engine.checkpoint.files.tensor_files import StoredEntry, TensorEntry
from baton.engine.checkpoint.quantized.awq import parse_awq
from baton.engine.checkpoint.quantized.compressed_tensors import parse_compressed
from baton.engine.checkpoint.quantized.entry import QuantizedEntry
from baton.engine.checkpoint.quantized.fp8 import parse_fp8
from baton.engine.checkpoint.quantized.gptq import parse_gptq
from baton.engine.checkpoint.quantized.mxfp4 import parse_mxfp4
from baton.engine.models.config.description import wrong
from baton.engine.models.config.keys import ConfigKeys

logger = logging.getLogger(__name__)


class QuantizedLayout(Protocol):
    """How one quantization method stores weights."""

    def find(self, entries: Mapping[str, StoredEntry]) -> Iterator[tuple[str, QuantizedEntry]]:
        """The quantized weights, with the names that they would have unquantized.

        Raises CheckpointError if parts are missing or do not fit together.
        """


LAYOUTS: Mapping[str, Callable[[ConfigKeys], QuantizedLayout]] = {
    "gptq": parse_gptq,
    "awq": parse_awq,
    "fp8": parse_fp8,
    "fbgemm_fp8": parse_fp8,
    "compressed-tensors": parse_compressed,
    "mxfp4": parse_mxfp4,
}
SECTIONS = ("quantization_config", "compression_config")
"""Two names of the same section; the second is used by older compressed-tensors."""
FOR_ACTIVATIONS = (
    ".input_scale",
    ".input_zero_point",
    ".input_g_idx",
    ".output_scale",
    ".activation_scale",
    ".k_scale",
    ".v_scale",
    ".q_scale",
)
"""Ends of names of static scales of activations and KV, which are not used: both are quantized with
dynamic scales here."""


def parse_layout(raw: Mapping[str, object]) -> QuantizedLayout | None:
    """The quantized layout of a checkpoint, from its config.json; None if it is not quantized.

    Raises CheckpointError, naming key and remedy, if it is not supported.
    """
    for outer in (raw, raw.get("text_config")):
        for section in SECTIONS:
            found = outer.get(section) if isinstance(outer, Mapping) else None
            if found is not None:
                return _parse(section, found)
    return None


def _parse(section: str, found: object) -> QuantizedLayout:
    if not isinstance(found, Mapping):
        raise wrong(f"`{section}` must be an object, not {found!r}")
    method = found.get("quant_method")
    parse = LAYOUTS.get(str(method))
    if parse is None:
        raise CheckpointError(
            f"config.json: `{section}.quant_method` is {method!r}; supported are "
            f"{', '.join(LAYOUTS)}; serve the unquantized checkpoint that it was made from, with "
            "--quantize int8 or int4 if memory is short"
        )
    return parse(ConfigKeys(found, path=f"{section}."))


def as_whole(
    entries: Mapping[str, StoredEntry], layout: QuantizedLayout | None, wanted: Collection[str]
) -> Mapping[str, TensorEntry]:
    """The tensors of a checkpoint, with quantized weights under the names they would have
    unquantized. Biases of zeros that are not `wanted` are left out, and so are static scales."""
    if layout is None:
        return entries
    found = dict(layout.find(entries))
    parts = {id(part) for quantized in found.values() for part in quantized.stored.parts}
    whole: dict[str, TensorEntry] = {}
    for name, entry in entries.items():
        is_unused = name.endswith(FOR_ACTIVATIONS) or (
            name not in wanted and _is_zero_bias(name, entry, found)
        )
        if id(entry) not in parts and not is_unused:
            whole[name] = entry
    num_scales = sum(name.endswith(FOR_ACTIVATIONS) for name in entries)
    if num_scales:
        logger.info(
            "%d static scales of activations and KV are not used: both are quantized, if at all, "
            "with dynamic scales",
            num_scales,
        )
    return {**whole, **found}


def _is_zero_bias(name: str, entry: StoredEntry, found: Mapping[str, QuantizedEntry]) -> bool:
    """Whether the tensor is a bias of zeros, which AutoGPTQ adds to modules without a bias."""
    module = name.removesuffix(".bias")
    return module != name and f"{module}.weight" in found and not bool(entry.stored().any())
