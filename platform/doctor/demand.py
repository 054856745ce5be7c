"""What the replicas of a deployment will want of the machine they all run on."""

from __future__ import annotations

from pathlib import Path

from baton.core.kv_layout import KvLayout
from baton.engine.cache_plan import CPU_CACHE_BYTES, KV_DTYPES
from baton.engine.checkpoint.config import ModelConfig
from baton.engine.checkpoint.info import check_kv_dtype
from baton.engine.checkpoint.kept_bytes import kept_bytes
from baton.engine.checkpoint.load import read_config
from baton.engine.config import CacheConfig
from baton.engine.models.registry import family_of
from baton.engine.parallel.cutting import share_of
from baton.platform.config import DeploymentConfig
from baton.platform.doctor.node_checks import GIB, Demand


def demand_of(config: DeploymentConfig, folder: Path, *, is_on_gpu: bool) -> Demand:
    """On a GPU weights and KV are its own. Raises CheckpointError if the model cannot be read, and
    InvalidConfig if it cannot be split among the ranks of a pool."""
    pools = (config.prefill, config.decode)
    num_replicas = sum(pool.replicas for pool in pools)
    memory_bytes = num_replicas * int(config.tiers.host.gib * GIB)
    if not is_on_gpu:
        model = read_config(folder)
        for pool in pools:
            num_ranks = pool.parallel.size
            share = share_of(model, pool.parallel.mesh)
            of_rank = weight_bytes(config, share) + kv_bytes(pool.cache, share, config.dtype)
            memory_bytes += pool.replicas * num_ranks * of_rank
    disk = config.tiers.disk
    return Demand(
        memory_bytes=memory_bytes,
        num_threads=sum(
            pool.replicas * pool.parallel.size * (pool.resources.num_threads or 1) for pool in pools
        ),
        num_replicas=num_replicas,
        disk_bytes={disk.folder: num_replicas * int(disk.gib * GIB)} if disk.folder else {},
    )


def kv_bytes(cache: CacheConfig, model: ModelConfig, dtype: str) -> int:
    """Of one rank on a CPU, of whose share `model` has the sizes."""
    if cache.memory_gib is not None:
        return int(cache.memory_gib * GIB)
    if cache.num_blocks is None:
        return CPU_CACHE_BYTES
    kv_dtype = KV_DTYPES[cache.kv_dtype]
    check_kv_dtype(kv_dtype, model.num_vectors)
    layout = KvLayout(
        model_fingerprint=b"",
        dtype=_served(dtype, model) if kv_dtype == "auto" else kv_dtype,
        num_layers=model.num_layers,
        num_kv_heads=model.heads.num_kv_heads,
        head_dim=model.heads.head_dim,
        block_size=cache.block_size,
        num_vectors=model.num_vectors,
    )
    return cache.num_blocks * layout.block_bytes


def weight_bytes(config: DeploymentConfig, model: ModelConfig) -> int:
    """Of one rank on a CPU; what comes quantised counts as widened, which some of it is.

    Told from shapes: the files need not be there yet, and dummy weights take as much.
    """
    family = family_of(model.architecture)
    return kept_bytes(family.build(model), _served(config.dtype, model), config.quantize)


def _served(dtype: str, model: ModelConfig) -> str:
    return (model.dtype or "float32") if dtype == "auto" else dtype
