"""The architectures Baton serves, by the name `config.json` gives them.

Families are imported on demand, so that the list is available without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING

from baton.engine.models.config.description import CLASSIFIER, unsupported

if TYPE_CHECKING:
    from baton.engine.models.skeleton.family import Family

_FAMILIES: Mapping[str, tuple[str, str]] = {
    "LlamaForCausalLM": ("llama", "LLAMA"),
    "MistralForCausalLM": ("mistral", "MISTRAL"),
    "Qwen2ForCausalLM": ("qwen2", "QWEN2"),
    "Qwen3ForCausalLM": ("qwen3", "QWEN3"),
    "Gemma2ForCausalLM": ("gemma2", "GEMMA2"),
    "Gemma3ForCausalLM": ("gemma3", "GEMMA3"),
    "Phi3ForCausalLM": ("phi3", "PHI3"),
    "GPT2LMHeadModel": ("gpt2", "GPT2"),
    "FalconForCausalLM": ("falcon", "FALCON"),
    "DeepseekV2ForCausalLM": ("deepseek_v2", "DEEPSEEK_V2"),
    "DeepseekV3ForCausalLM": ("deepseek_v3", "DEEPSEEK_V3"),
    "DeepseekV32ForCausalLM": ("deepseek_v32", "DEEPSEEK_V32"),
    "DeepseekV4ForCausalLM": ("deepseek_v4", "DEEPSEEK_V4"),
    "GlmMoeDsaForCausalLM": ("glm_moe_dsa", "GLM_MOE_DSA"),
    "GptOssForCausalLM": ("gpt_oss", "GPT_OSS"),
    "MixtralForCausalLM": ("mixtral", "MIXTRAL"),
    "Qwen2MoeForCausalLM": ("qwen2_moe", "QWEN2_MOE"),
    "Qwen3MoeForCausalLM": ("qwen3_moe", "QWEN3_MOE"),
    "Llama4ForCausalLM": ("llama4", "LLAMA4"),
    "Llama4ForConditionalGeneration": ("llama4", "LLAMA4_OF_SEEING"),
}
"""Modules of `baton.engine.models.families`, and the name of the family in each."""
_CLASSIFIERS: Mapping[str, str] = {
    f"{stem}{CLASSIFIER}": architecture
    for stem, architecture in (
        ("Llama", "LlamaForCausalLM"),
        ("Mistral", "MistralForCausalLM"),
        ("Qwen2", "Qwen2ForCausalLM"),
        ("Qwen3", "Qwen3ForCausalLM"),
        ("Gemma2", "Gemma2ForCausalLM"),
        ("Gemma3Text", "Gemma3ForCausalLM"),
        ("Phi3", "Phi3ForCausalLM"),
        ("GPT2", "GPT2LMHeadModel"),
        ("Falcon", "FalconForCausalLM"),
        ("DeepseekV2", "DeepseekV2ForCausalLM"),
        ("DeepseekV3", "DeepseekV3ForCausalLM"),
        ("GptOss", "GptOssForCausalLM"),
        ("Mixtral", "MixtralForCausalLM"),
        ("Qwen2Moe", "Qwen2MoeForCausalLM"),
        ("Qwen3Moe", "Qwen3MoeForCausalLM"),
    )
}
"""Base architecture of each classifier, which only differs in its head."""
ARCHITECTURES = (*_FAMILIES, *_CLASSIFIERS)


def check_architecture(architecture: str) -> None:
    """Raises CheckpointError, with those that are known, on any other."""
    if architecture not in ARCHITECTURES:
        meant = get_close_matches(architecture, ARCHITECTURES, n=1, cutoff=0.8)
        hint = f" (did you mean {meant[0]}?)" if meant else ""
        raise unsupported(
            f"architecture {architecture!r} is not supported{hint}; "
            f"known are {', '.join(_FAMILIES)}; most also as ...{CLASSIFIER}"
        )


def family_of(architecture: str) -> Family:
    """Raises CheckpointError as `check_architecture`."""
    check_architecture(architecture)
    module, name = _FAMILIES[_CLASSIFIERS.get(architecture, architecture)]
    family: Family = getattr(import_module(f"baton.engine.models.families.{module}"), name)
    if architecture not in _CLASSIFIERS:
        return family
    made: Family = import_module("baton.engine.models.skeleton.classifier").classifying(family)
    return made
