"""Builds an engine's drafter from its configuration."""

from __future__ import annotations

from baton.core.errors import InvalidConfig
from baton.core.kv_layout import KvLayout
from baton.engine.batch.static_batch import PassLimits
from baton.engine.checkpoint.load import LoadedModel
from baton.engine.config import EngineConfig, SpeculationConfig
from baton.engine.memory.kv_cache import KvCache
from baton.engine.models.config.info import ModelInfo
from baton.engine.models.heads.draft_head import DraftHead
from baton.engine.models.heads.medusa import MedusaHeads
from baton.engine.passes.runner import ModelRunner
from baton.engine.passes.taped_head import record_head
from baton.engine.speculation.draft_budget import AdaptiveBudget, DraftBudget, FixedBudget
from baton.engine.speculation.draft_model import ModelDrafter
from baton.engine.speculation.drafter import Drafter
from baton.engine.speculation.head_drafter import HeadDrafter
from baton.engine.speculation.lookahead import LookaheadDrafter
from baton.engine.speculation.medusa_drafter import MedusaDrafter
from baton.engine.speculation.ngram import NgramDrafter
from baton.engine.speculation.speculation import Speculation
from baton.engine.speculation.suffix import SuffixDrafter

Drafting = LoadedModel | DraftHead | MedusaHeads
"""A draft model or draft heads, loaded from a checkpoint."""
MIN_TAPED = 64
"""Least size, in tokens, of the largest pass recorded for a draft head."""
TOKENS_OF_REQUEST, MAX_DRAFT_BYTES = 2048, 1 << 29
"""Default size of a draft model's KV cache: tokens for each request that may run, shared by all
running requests; and the limit in bytes."""


def speculation_of(
    config: EngineConfig, info: ModelInfo, device: str, draft: Drafting | None = None
) -> Speculation | None:
    """The speculation that `config` asks for; None if it is off. `draft` is the draft model of
    method `draft`, or the heads of methods that use heads.

    Raises InvalidConfig if `draft` is missing or has another vocabulary than the model.
    """
    speculation = config.speculation
    if speculation.method == "off":
        return None
    if speculation.method in ("mtp", "eagle", "p-eagle", "medusa"):
        reader = _reader(config, info, device, draft)
        return Speculation(reader, _budget(speculation, reader), reader=reader)
    if speculation.method == "lookahead":
        lookahead = LookaheadDrafter()
        return Speculation(lookahead, _budget(speculation), refiner=lookahead)
    return Speculation(_drafter(config, info, device, draft), _budget(speculation))


def _budget(
    speculation: SpeculationConfig, reader: HeadDrafter | MedusaDrafter | None = None
) -> DraftBudget:
    if not speculation.adaptive:
        return FixedBudget(speculation.max_tokens)
    if reader is None:
        return AdaptiveBudget(speculation.max_tokens)
    return AdaptiveBudget(
        speculation.max_tokens, warm_up_steps=reader.num_passes, at_once=reader.drafts_at_once
    )


def num_draft_blocks(config: EngineConfig, layout: KvLayout, max_model_len: int) -> int:
    """Number of KV blocks of a drafter whose KV has this layout and whose requests have at most
    `max_model_len` tokens. Raises InvalidConfig if the configured memory does not hold one
    block."""
    of_request = layout.num_blocks_for(min(max_model_len, TOKENS_OF_REQUEST))
    num_wanted = max(
        config.scheduler.max_running * of_request, layout.num_blocks_for(max_model_len)
    )
    if config.speculation.memory_gib is None:
        return max(1, min(num_wanted, MAX_DRAFT_BYTES // layout.block_bytes))
    memory_bytes = int(config.speculation.memory_gib * (1 << 30))
    if memory_bytes < layout.block_bytes:
        raise InvalidConfig(
            f"speculation.memory_gib: {memory_bytes} bytes do not hold one block of "
            f"{layout.block_bytes} bytes of the draft model's KV"
        )
    return memory_bytes // layout.block_bytes


def _reader(
    config: EngineConfig, info: ModelInfo, device: str, head: Drafting | None
) -> HeadDrafter | MedusaDrafter:
    """A drafter that reads the model's hidden states. Raises InvalidConfig if there is no head."""
    method, has_own_noise = config.speculation.method, _has_own_noise(config)
    if isinstance(head, MedusaHeads):
        return MedusaDrafter(head, eos_token_ids=info.eos_token_ids, has_own_noise=has_own_noise)
    if head is None or isinstance(head, LoadedModel):
        raise InvalidConfig(
            f"speculation.method {method} needs a draft head, and none was loaded; "
            "use a checkpoint that has one, or another method"
        )
    scheduler, layout = config.scheduler, head.layout(info.layout(config.cache.block_size))
    longest = min(info.max_model_len, scheduler.max_model_len or info.max_model_len)
    num_blocks = num_draft_blocks(config, layout, longest)
    limits = PassLimits(
        max_tokens=max(MIN_TAPED, scheduler.max_running * 2 * config.speculation.max_tokens),
        max_requests=max(scheduler.max_running, 8),
        max_blocks=layout.num_blocks_for(longest),
    )
    cache = KvCache(layout, num_blocks, device, dtype=info.dtype, limits=limits)
    taped = record_head(head, cache, head.width)
    return HeadDrafter(
        method,
        head,
        cache,
        eos_token_ids=info.eos_token_ids,
        taped=taped,
        has_own_noise=has_own_noise,
    )


def _drafter(config: EngineConfig, info: ModelInfo, device: str, draft: Drafting | None) -> Drafter:
    match config.speculation.method:
        case "suffix":
            return SuffixDrafter()
        case "ngram":
            return NgramDrafter()
    if not isinstance(draft, LoadedModel):
        raise InvalidConfig(
            "speculation.method draft needs a draft model; set speculation.model to its checkpoint"
        )
    return _model_drafter(config, info, device, draft)


def _model_drafter(
    config: EngineConfig, info: ModelInfo, device: str, draft: LoadedModel
) -> ModelDrafter:
    if draft.info.vocab_size != info.vocab_size:
        raise InvalidConfig(
            f"speculation.model: the draft model has a vocabulary of {draft.info.vocab_size} "
            f"tokens, and the model one of {info.vocab_size}; use one with the same tokenizer"
        )
    scheduler, layout = config.scheduler, draft.info.layout(config.cache.block_size)
    longest = min(draft.info.max_model_len, scheduler.max_model_len or draft.info.max_model_len)
    num_blocks = num_draft_blocks(config, layout, longest)
    limits = PassLimits(
        max_tokens=max(scheduler.max_batch_tokens, 8),
        max_requests=max(scheduler.max_running, 8),
        max_blocks=layout.num_blocks_for(longest),
    )
    cache = KvCache(layout, num_blocks, device, dtype=draft.info.dtype, limits=limits)
    return ModelDrafter(
        ModelRunner(draft, cache),
        max_batch_tokens=limits.max_tokens,
        eos_token_ids=info.eos_token_ids,
        has_own_noise=_has_own_noise(config),
    )


def _has_own_noise(config: EngineConfig) -> bool:
    return config.speculation.acceptance == "published"
