"""Checks that the served weights are as narrow as the sized ones.

`--precision` sizes a model as if its weights had so many bits. They have where its files have them
so, or where `quantize` rounds them; else replicas would be as wide as the dtype, and twice as large
as planned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from baton.core.kv_layout import ITEM_BYTES
from baton.engine.checkpoint.quantized.methods import SECTIONS
from baton.platform.doctor.demand import served_dtype
from baton.platform.size_plan.pass_time import BITS
from baton.platform.size_plan.question import Question

BITS_OF_METHODS = {"fp8": 8, "fbgemm_fp8": 8, "mxfp4": 4}
"""Bits of a weight, by quantisation methods that do not say how many."""
ROUNDED = {"int8": 8, "int4": 4}


def stored_bits(raw: Mapping[str, Any]) -> int | None:
    """Bits of a weight in a model's files, by its config.json; None if it is not quantised."""
    found = (outer.get(name) for outer in (raw, raw.get("text_config") or {}) for name in SECTIONS)
    section = next((each for each in found if each), None)
    if section is None:
        return None
    if groups := section.get("config_groups"):
        weights = [group["weights"] for group in groups.values() if group.get("weights")]
        return max((int(each["num_bits"]) for each in weights), default=None)
    return section.get("bits") or BITS_OF_METHODS.get(section.get("quant_method"))


def why_not_served(question: Question) -> str:
    """Why no configuration serves what was sized, and the remedy; empty if one does."""
    config, precision = question.config, question.precision
    device = "cpu" if question.accelerator.is_cpu else "cuda"
    dtype = served_dtype(config.dtype, question.model, device)
    wide, bits = 8 * ITEM_BYTES[dtype], BITS[precision]
    stored = None if config.quantize == "wide" else question.stored_bits
    kept = min(stored or wide, ROUNDED.get(config.quantize, wide))
    if kept <= bits:
        return ""
    ways = " or ".join(f"--quantize {way}" for way, its in ROUNDED.items() if its <= bits)
    narrower = f"name a checkpoint in {precision}, round its weights by {ways}, or"
    return (
        f"{config.model} would be served in {dtype}, {kept} bits a weight, and was sized in "
        f"{precision}: {narrower if ways else 'give --dtype bfloat16, or'} leave --precision out"
    )
