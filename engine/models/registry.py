"""The architectures Baton serves, by the name `config.json` gives them."""

from __future__ import annotations

from collections.abc import Mapping

from baton.core.errors import CheckpointError
from baton.engine.models.falcon import FALCON
from baton.engine.models.family import Family
from baton.engine.models.gemma2 import GEMMA2
from baton.engine.models.gemma3 import GEMMA3
from baton.engine.models.gpt2 import GPT2
from baton.engine.models.llama import LLAMA
from baton.engine.models.mistral import MISTRAL
from baton.engine.models.phi3 import PHI3
from baton.engine.models.qwen2 import QWEN2
from baton.engine.models.qwen3 import QWEN3

FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": MISTRAL,
    "Qwen2ForCausalLM": QWEN2,
    "Qwen3ForCausalLM": QWEN3,
    "Gemma2ForCausalLM": GEMMA2,
    "Gemma3ForCausalLM": GEMMA3,
    "Phi3ForCausalLM": PHI3,
    "GPT2LMHeadModel": GPT2,
    "FalconForCausalLM": FALCON,
}


def family_of(architecture: str) -> Family:
    """Raises CheckpointError, listing the known architectures, on any other."""
    if architecture not in FAMILIES:
        raise CheckpointError(
            f"config.json: architecture {architecture!r} is not supported; "
            f"known are {', '.join(FAMILIES)}"
        )
    return FAMILIES[architecture]
