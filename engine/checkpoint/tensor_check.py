"""Checks that a checkpoint has the tensors of its model, by name, shape and dtype."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from baton.core.errors import CheckpointError
from baton.engine.checkpoint.files.tensor_files import TensorEntry
from baton.engine.models.config.model_config import ModelConfig
from baton.engine.models.skeleton.family import Family
from baton.engine.sharding.placement import WeightPlacement

logger = logging.getLogger(__name__)
STORED_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
STORED_INTEGERS = ("I64", "I32")


def check_tensors(
    placements: Sequence[WeightPlacement],
    entries: Mapping[str, TensorEntry],
    config: ModelConfig,
    family: Family,
) -> None:
    """Raise CheckpointError with all tensors that are missing or unexpected, or have another shape
    or dtype than expected."""
    wanted = {placement.source: placement.shape for placement in placements}
    missing = sorted(wanted.keys() - entries.keys())
    unexpected = sorted(
        name for name in entries.keys() - wanted.keys() if not _is_redundant(name, config, family)
    )
    misfits = [
        f"{name} is {list(entries[name].shape)}, not {list(shape)}"
        for name, shape in wanted.items()
        if name in entries and entries[name].shape != shape
    ]
    odd = sorted(
        f"{name} is {entries[name].dtype}, not one of {', '.join(known)}"
        for name in wanted.keys() & entries.keys()
        if entries[name].dtype
        not in (known := STORED_INTEGERS if name.endswith(family.integers) else STORED_DTYPES)
    )
    problems = {
        "missing tensors": missing,
        "unexpected tensors": unexpected,
        "wrong shapes": misfits,
        "unsupported dtypes": odd,
    }
    if any(problems.values()):
        raise CheckpointError(
            f"the checkpoint is not the {config.architecture} that its config.json describes: "
            + "; ".join(f"{what}: {_first(names)}" for what, names in problems.items() if names)
        )
    if any(family.is_of_further_layer(name, config.num_layers) for name in entries):
        logger.info("MTP layers, which predict further tokens, are not loaded with the model")


def _is_redundant(name: str, config: ModelConfig, family: Family) -> bool:
    """Whether a tensor may be ignored: a buffer of an old checkpoint; a head of a model whose head
    is tied or classifies; an MTP layer; a part that this family does not use, such as a vision
    encoder."""
    has_no_own_head = config.tie_word_embeddings or config.num_labels is not None
    return (
        name.endswith(family.buffers)
        or name.startswith(family.foreign)
        or (has_no_own_head and name.endswith("lm_head.weight"))
        or family.is_of_further_layer(name, config.num_layers)
    )


def _first(names: list[str], limit: int = 8) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
