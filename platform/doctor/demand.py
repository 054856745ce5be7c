"""Resources that a deployment's replicas will need on one machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from baton.core.kv_layout import ITEM_BYTES, OUTPUTS, DraftFeatures, KvLayout
from baton.core.replicas import Role
from baton.engine.cache_plan import CPU_CACHE_BYTES
from baton.engine.checkpoint.load import read_config
from baton.engine.checkpoint.load_ends import has_ends, keep_ends
from baton.engine.checkpoint.load_heads import head_bytes, read_head_config, taps_layers
from baton.engine.checkpoint.prepared_bytes import prepared_bytes, screen_bytes
from baton.engine.checkpoint.quantized.methods import parse_layout
from baton.engine.checkpoint.serving_dtype import serving_dtype
from baton.engine.config import CacheConfig
from baton.engine.models.config.description import read_json
from baton.engine.models.config.info import check_kv_dtype
from baton.engine.models.config.model_config import ModelConfig
from baton.engine.models.heads.draft_head import End
from baton.engine.models.heads.eagle import EagleHead
from baton.engine.models.heads.eagle3 import Eagle3Head
from baton.engine.models.registry import family_of
from baton.engine.models.skeleton.mtp import MtpHead
from baton.engine.sharding.cutting import share_of
from baton.engine.sharding.stages import keep_stage, spread_layers
from baton.engine.speculation.assemble import num_draft_blocks
from baton.engine.speculation.feature_keeper import MAX_SHARE
from baton.engine.speculation.feature_keeper import share_of as feature_share
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.config.pools import PoolConfig
from baton.platform.doctor.node_checks import GIB, Demand
from baton.platform.doctor.process_room import process_bytes
from baton.platform.machine.core_share import num_ranks_of
from baton.platform.models.adapter_folders import folders_here
from baton.platform.models.listing import ADAPTER_WEIGHTS


def demand_of(config: DeploymentConfig, folder: Path, *, is_on_gpu: bool) -> Demand:
    """Memory that the replicas will need; on a GPU, without weights and KV. Raises
    CheckpointError if the model cannot be read, and InvalidConfig if it cannot be split among the
    ranks of a pool."""
    pools = (config.prefill, config.decode)
    num_replicas = sum(pool.num_engines for pool in pools)
    tier_bytes = num_replicas * int(config.tiers.host.gib * GIB)
    weights = least = kv = 0
    if not is_on_gpu:
        model, adapters = read_config(folder), _adapter_bytes(config)
        for pool in pools:
            of_replica = _replica_bytes(config, pool, model)
            weights += pool.replicas * of_replica.weight_bytes
            least += pool.replicas * _least_bytes(of_replica, config.quantize, folder)
            weights += pool.replicas * adapters
            least += pool.replicas * adapters
            kv += pool.replicas * of_replica.kv_bytes
        for role in Role:
            kv += config.pool(role).num_engines * _feature_bytes(config, role, model)
        draft = draft_memory(config, model, "cpu")
        if draft is not None:
            weights += config.decode.num_engines * draft.weight_bytes
            least += config.decode.num_engines * _least_draft_bytes(draft, config)
            kv += config.decode.num_engines * draft.kv_bytes
    disk = config.tiers.disk
    return Demand(
        weight_bytes=weights,
        least_weight_bytes=least,
        cache_bytes=kv + tier_bytes,
        process_bytes=process_bytes(config),
        num_threads=sum(
            pool.replicas * pool.parallel.size * (pool.resources.num_threads or 1) for pool in pools
        ),
        num_replicas=num_replicas,
        num_ranks=num_ranks_of(config),
        disk_bytes={disk.folder: num_replicas * int(disk.gib * GIB)} if disk.folder else {},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMemory:
    """Memory of a model's weights and KV."""

    weight_bytes: int
    kv_bytes: int

    @property
    def num_bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes


def draft_memory(config: DeploymentConfig, model: ModelConfig, device: str) -> ModelMemory | None:
    """Memory of one decode engine's draft model or head; None without one. `config` has its folder.
    Raises CheckpointError if it cannot be read, InvalidConfig if its KV has no room."""
    pool, dtype = config.decode, served_dtype(config.dtype, model, device)
    folder, method = Path(pool.speculation.model), pool.speculation.method
    shares: tuple[End, ...] = ()
    match method:
        case "draft":
            draft = read_config(folder)
            weights = prepared_bytes(family_of(draft.architecture).build(draft), dtype, "none")
        case "eagle" | "p-eagle":
            draft = replace(read_head_config(folder), max_model_len=model.max_model_len)
            weights = _head_bytes(folder, dtype)
            is_third = method == "p-eagle" or (weights > 0 and taps_layers(folder))
            shares = Eagle3Head.shares if is_third else EagleHead.shares
            if not weights:  # an estimate from its shapes
                weights = prepared_bytes(family_of(draft.architecture).build(draft), dtype, "none")
        case "mtp":
            family = family_of(model.architecture)
            if not family.further_layers:
                return None  # refused by the engine
            draft, shares = replace(model, layers=model.layers[-1:]), MtpHead.shares
            weights = prepared_bytes(MtpHead(model, family), dtype, "none")
        case "medusa":
            return ModelMemory(weight_bytes=_head_bytes(folder, dtype), kv_bytes=0)
        case _:
            return None
    weights += _end_bytes(config, model, dtype, shares)
    layout = kv_layout(CacheConfig(block_size=pool.cache.block_size), draft, dtype)
    longest = min(draft.max_model_len, pool.scheduler.max_model_len or draft.max_model_len)
    num_blocks = num_draft_blocks(pool.engine, layout, longest)
    return ModelMemory(weight_bytes=weights, kv_bytes=num_blocks * layout.block_bytes)


def _end_bytes(
    config: DeploymentConfig, model: ModelConfig, dtype: str, shares: tuple[End, ...]
) -> int:
    """Additional bytes of a lead's draft head: whole embedding and output head, of which ranks have
    parts."""
    if not shares or has_ends(model, config.decode.parallel.mesh):
        return 0
    ends = family_of(model.architecture).build(model)
    keep_ends(ends, shares)
    return prepared_bytes(ends, dtype, config.quantize)


def _head_bytes(folder: Path, dtype: str) -> int:
    """0 where the weights are not here yet."""
    has_weights = any(path.suffix in (".safetensors", ".bin", ".pt") for path in folder.iterdir())
    return head_bytes(folder, ITEM_BYTES[dtype]) if has_weights else 0


def _adapter_bytes(config: DeploymentConfig) -> int:
    """Bytes of the adapters' files that are here, about what an engine keeps of them."""
    return sum(
        path.stat().st_size
        for folder in folders_here(config).values()
        for path in map(folder.joinpath, ADAPTER_WEIGHTS)
        if path.is_file()
    )


def _least_draft_bytes(draft: ModelMemory, config: DeploymentConfig) -> int:
    if config.decode.speculation.method != "draft":
        return draft.weight_bytes
    return _least_bytes(draft, "none", Path(config.decode.speculation.model))


def _feature_bytes(config: DeploymentConfig, role: Role, model: ModelConfig) -> int:
    """Bytes that heads' features add to the KV blocks."""
    cache, wanted = config.pool(role).cache, config.engine(role).keeps_features_for
    if wanted is None or cache.num_blocks is None or cache.memory_gib is not None:
        return 0
    dtype = served_dtype(config.dtype, model, "cpu")
    layout = kv_layout(cache, model, dtype)
    features = DraftFeatures(kind=OUTPUTS, width=model.hidden_size, dtype=dtype)
    if wanted.features == "auto" and feature_share(features, layout) > MAX_SHARE:
        return 0
    return cache.num_blocks * cache.block_size * features.token_bytes


def _least_bytes(counted: ModelMemory, quantize: str, folder: Path) -> int:
    """The least bytes of weights on a device: of a quantised checkpoint some weights stay
    quantised, others are widened."""
    if quantize != "none" or parse_layout(read_json(folder / "config.json")) is None:
        return counted.weight_bytes
    files = (file.stat().st_size for file in folder.glob("*.safetensors"))
    return min(counted.weight_bytes, sum(files))


def _replica_bytes(config: DeploymentConfig, pool: PoolConfig, model: ModelConfig) -> ModelMemory:
    """Weights and KV of all ranks of one replica on a CPU."""
    mesh, family = pool.parallel.mesh, family_of(model.architecture)
    dtype = served_dtype(config.dtype, model, "cpu")
    share = share_of(model, mesh)
    weights = kv = 0
    for layers in spread_layers(family.build(share), share, mesh.pipeline):
        stage = family.build(share)
        keep_stage(stage, layers)
        kept = replace(share, layers=tuple(share.layers[layer] for layer in layers))
        weights += prepared_bytes(
            stage, dtype, config.quantize, is_deterministic=config.deterministic
        )
        if mesh.engine.size == 1:
            weights += screen_bytes(stage, dtype, config.quantize)
        kv += kv_bytes(pool.cache, kept, dtype)
    num_alike = mesh.size // mesh.pipeline
    return ModelMemory(weight_bytes=weights * num_alike, kv_bytes=kv * num_alike)


def kv_bytes(cache: CacheConfig, model: ModelConfig, dtype: str) -> int:
    """Bytes of KV of one rank on a CPU; `model` has the sizes of its share, `dtype` its compute
    dtype."""
    if cache.memory_gib is not None:
        return int(cache.memory_gib * GIB)
    if cache.num_blocks is None:
        return CPU_CACHE_BYTES
    return cache.num_blocks * kv_layout(cache, model, dtype).block_bytes


def kv_layout(cache: CacheConfig, model: ModelConfig, dtype: str) -> KvLayout:
    """The KV layout of a model that computes in `dtype`. Raises InvalidConfig for an unsupported KV
    dtype."""
    kv_dtype = cache.kv_dtype
    check_kv_dtype(kv_dtype, model.num_vectors)
    return KvLayout(
        model_fingerprint=b"",
        dtype=dtype if kv_dtype == "auto" else kv_dtype,
        num_layers=model.num_layers,
        num_kv_heads=model.heads.num_kv_heads,
        head_dim=model.heads.head_dim,
        block_size=cache.block_size,
        num_vectors=model.num_vectors,
        side_caches=model.side_caches(dtype),
    )


def weight_bytes(config: DeploymentConfig, model: ModelConfig) -> int:
    """Bytes of weights of one rank on a CPU, from shapes; quantised ones count as widened."""
    family, dtype = family_of(model.architecture), served_dtype(config.dtype, model, "cpu")
    return prepared_bytes(
        family.build(model), dtype, config.quantize, is_deterministic=config.deterministic
    )


def served_dtype(dtype: str, model: ModelConfig, device: str) -> str:
    """The dtype of `auto` for the model, without reading tensors."""
    return serving_dtype(dtype, model.dtype or "float32", device)
