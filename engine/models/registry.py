"""The architectures Baton serves, by the name `config.json` gives them."""

from __future__ import annotations

from collections.abc import Mapping

from baton.core.errors import CheckpointError
from baton.engine.models.families.deepseek_v2 import DEEPSEEK_V2
from baton.engine.models.families.deepseek_v3 import DEEPSEEK_V3
from baton.engine.models.families.deepseek_v4 import DEEPSEEK_V4
from baton.engine.models.families.deepseek_v32 import DEEPSEEK_V32
from baton.engine.models.families.falcon import FALCON
from baton.engine.models.families.gemma2 import GEMMA2
from baton.engine.models.families.gemma3 import GEMMA3
from baton.engine.models.families.glm_moe_dsa import GLM_MOE_DSA
from baton.engine.models.families.gpt2 import GPT2
from baton.engine.models.families.gpt_oss import GPT_OSS
from baton.engine.models.families.llama import LLAMA
from baton.engine.models.families.llama4 import LLAMA4, LLAMA4_OF_SEEING
from baton.engine.models.families.mistral import MISTRAL
from baton.engine.models.families.mixtral import MIXTRAL
from baton.engine.models.families.phi3 import PHI3
from baton.engine.models.families.qwen2 import QWEN2
from baton.engine.models.families.qwen2_moe import QWEN2_MOE
from baton.engine.models.families.qwen3 import QWEN3
from baton.engine.models.families.qwen3_moe import QWEN3_MOE
from baton.engine.models.skeleton.family import Family

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
    "DeepseekV2ForCausalLM": DEEPSEEK_V2,
    "DeepseekV3ForCausalLM": DEEPSEEK_V3,
    "DeepseekV32ForCausalLM": DEEPSEEK_V32,
    "DeepseekV4ForCausalLM": DEEPSEEK_V4,
    "GlmMoeDsaForCausalLM": GLM_MOE_DSA,
    "GptOssForCausalLM": GPT_OSS,
    "MixtralForCausalLM": MIXTRAL,
    "Qwen2MoeForCausalLM": QWEN2_MOE,
    "Qwen3MoeForCausalLM": QWEN3_MOE,
    "Llama4ForCausalLM": LLAMA4,
    "Llama4ForConditionalGeneration": LLAMA4_OF_SEEING,
}


def family_of(architecture: str) -> Family:
    """Raises CheckpointError, listing the known architectures, on any other."""
    if architecture not in FAMILIES:
        raise CheckpointError(
            f"config.json: architecture {architecture!r} is not supported; "
            f"known are {', '.join(FAMILIES)}"
        )
    return FAMILIES[architecture]
