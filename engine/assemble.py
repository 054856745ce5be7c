"""An engine from a model folder: weights, cache and scheduler, sized for the device they are on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypedDict, Unpack

import torch

from baton.core.kv_arena import Introduce
from baton.engine.cache_plan import plan_cache
from baton.engine.checkpoint.load import LoadedModel, load_model
from baton.engine.checkpoint.load_heads import (
    load_eagle_head,
    load_feature_join,
    load_medusa_heads,
    load_mtp_head,
)
from baton.engine.config import EngineConfig, SpeculationConfig
from baton.engine.engine import Engine
from baton.engine.grammar.grammar import GrammarCompiler
from baton.engine.grammar.structured_output import LlGuidanceCompiler
from baton.engine.memory.kv_cache import KvCache
from baton.engine.mesh.ranks import ONE_RANK, MeshGroups, RankGroup
from baton.engine.models.heads.eagle3 import FeatureJoin
from baton.engine.models.heads.medusa import MedusaHeads
from baton.engine.passes.runner import ModelRunner
from baton.engine.ranks.assemble import check_alike, following_runner, lead_runner
from baton.engine.ranks.lead import LeadRunner, follow
from baton.engine.ranks.lockstep import LockstepRunner
from baton.engine.sharding.expert_balancer import ExpertBalancer
from baton.engine.speculation.assemble import Drafting, speculation_of
from baton.engine.speculation.feature_keeper import FeatureKeeper, features_of, keeping
from baton.kernels.paging.window import Streaming
from baton.kernels.products.vocabulary_screen import screen_of

logger = logging.getLogger(__name__)


class ModelOptions(TypedDict, total=False):
    """The configuration of a model; see `load_model`."""

    dtype: str
    device: str
    load_format: str
    quantize: str
    deterministic: bool
    streaming: Streaming | None
    adapters: Mapping[str, Path]


def assemble_engine(
    folder: Path,
    config: EngineConfig,
    *,
    progress: Callable[[int, int], None] | None = None,
    groups: MeshGroups = ONE_RANK,
    **options: Unpack[ModelOptions],
) -> Engine:
    """Assemble an engine, at its lead; the other ranks call `follow_lead` with the same.

    Raises CheckpointError for a folder that cannot be served, InvalidConfig for a tiny cache, or if
    the model cannot be split among so many ranks.
    """
    device = find_device(options.get("device", "auto"))
    loaded = _load(folder, config, {**options, "device": device}, groups, progress)
    wanted_len, max_len = config.scheduler.max_model_len, loaded.info.max_model_len
    if wanted_len is not None and wanted_len > max_len:
        logger.warning(
            "max_model_len: the model takes %d tokens a request, not %d", max_len, wanted_len
        )
    grammars = LlGuidanceCompiler.from_folder(folder, loaded.info)
    draft = load_draft(config.speculation, folder, loaded, device)
    join = None if draft is not None else _load_join(config, loaded, device)
    return engine_around(loaded, config, device, grammars, draft, join)


def follow_lead(
    folder: Path,
    config: EngineConfig,
    groups: MeshGroups,
    *,
    introduce: Introduce | None = None,
    **options: Unpack[ModelOptions],
) -> None:
    """Compute this rank's share of what the lead's engine runs, until it ends.

    `introduce` registers this rank's KV for other replicas; None: they reach it through its lead.
    Raises what `assemble_engine` raises, and RuntimeError once another rank is gone.
    """
    device = find_device(options.get("device", "auto"))
    loaded = _load(folder, config, {**options, "device": device}, groups)
    check_alike(loaded)
    runner = following_runner(loaded, plan_cache(loaded, config, device), introduce)
    huge = runner.cache.huge if config.cache.huge_pages == "auto" else None
    if huge is not None:
        huge.start(lambda: True)  # only the lead knows
    try:
        follow(runner)
    finally:
        if huge is not None:
            huge.stop()


def _load(
    folder: Path,
    config: EngineConfig,
    options: ModelOptions,
    groups: MeshGroups,
    progress: Callable[[int, int], None] | None = None,
) -> LoadedModel:
    max_model_len = config.scheduler.max_model_len
    return load_model(
        folder, **options, max_model_len=max_model_len, progress=progress, groups=groups
    )


def _load_join(config: EngineConfig, loaded: LoadedModel, device: str) -> FeatureJoin | None:
    """The projection of features that are kept for heads elsewhere, if these need one."""
    elsewhere = config.keeps_features_for
    if elsewhere is None or not elsewhere.model:
        return None
    return load_feature_join(Path(elsewhere.model), loaded, device=device)


def load_draft(
    config: SpeculationConfig, folder: Path, loaded: LoadedModel, device: str
) -> Drafting | None:
    """The drafting model or heads that `config` names, for the model that was read from `folder`,
    in its dtype; None if the method needs neither.

    An engine's lead holds all of it. Raises CheckpointError, and InvalidConfig for a head whose
    inputs ranks cannot provide.
    """
    match config.method:
        case "mtp":
            return load_mtp_head(folder, loaded, device=device)
        case "eagle":
            return load_eagle_head(Path(config.model), loaded, device=device)
        case "p-eagle":
            return load_eagle_head(Path(config.model), loaded, device=device, is_parallel=True)
        case "medusa":
            return load_medusa_heads(Path(config.model), loaded, device=device)
        case "draft":
            return load_model(Path(config.model), dtype=loaded.info.dtype, device=device)
    return None


def find_device(device: str) -> str:
    """The device for `auto`."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device


def engine_around(
    loaded: LoadedModel,
    config: EngineConfig,
    device: str,
    grammars: GrammarCompiler | None = None,
    draft: Drafting | None = None,
    join: FeatureJoin | None = None,
) -> Engine:
    """A model may be in several engines, each with a thread of its own. `draft` is the small model,
    or the head, that drafts for it, if one does; `join` what a head elsewhere reads of it, if that
    is not what the model gives. Raises InvalidConfig."""
    speculation = speculation_of(config, loaded.info, device, draft)  # KV has what that leaves
    head = join if draft is None or isinstance(draft, (LoadedModel, MedusaHeads)) else draft
    features = features_of(config, loaded, head, device)
    if speculation is None and features is not None:
        speculation = keeping(FeatureKeeper.of(head))
    reader = None if speculation is None else speculation.reader
    taps = None if reader is None else reader.taps
    groups = loaded.groups
    if groups.mesh.size > 1:
        check_alike(loaded)
    plan = plan_cache(loaded, config, device, features=features, taps=taps)
    own: LeadRunner | ModelRunner
    if groups.engine.size > 1:
        own = lead_runner(loaded, plan, taps)
    else:
        cache = KvCache(
            plan.layout,
            plan.num_blocks,
            device,
            dtype=loaded.info.dtype,
            limits=plan.limits,
            is_deterministic=loaded.is_deterministic,
        )
        own = ModelRunner(loaded, cache, taps)
        own.screen = screen_of(loaded.model.last.weight) if loaded.model.has_plain_head else None
    if loaded.held is not None:
        own.balancer = ExpertBalancer(loaded.held, groups, config.rebalance_passes)
    if isinstance(groups.data, RankGroup):
        runner = LockstepRunner(own, groups.data)
        engine = Engine(runner, config, grammars=grammars, lockstep=runner, speculation=speculation)
    else:
        engine = Engine(own, config, grammars=grammars, speculation=speculation)
    engine.stats.expert_load = None if own.balancer is None else own.balancer.load
    return engine
