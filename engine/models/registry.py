"""The architectures Baton serves, by the name `config.json` gives them."""

from __future__ import annotations

from collections.abc import Mapping

from baton.core.errors import CheckpointError
from baton.engine.models.family import Family
from baton.engine.models.llama import LLAMA
from baton.engine.models.qwen3 import QWEN3

FAMILIES: Mapping[str, Family] = {"LlamaForCausalLM": LLAMA, "Qwen3ForCausalLM": QWEN3}


def family_of(architecture: str) -> Family:
    """Raises CheckpointError, listing the known architectures, on any other."""
    if architecture not in FAMILIES:
        raise CheckpointError(
            f"config.json: architecture {architecture!r} is not supported; "
            f"known are {', '.join(FAMILIES)}"
        )
    return FAMILIES[architecture]
