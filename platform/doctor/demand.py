"""What the replicas of a deployment will want of the machine they all run on."""

from __future__ import annotations

from pathlib import Path

from baton.core.kv_layout import KvLayout
from baton.engine.assemble import CPU_CACHE_BYTES, KV_DTYPES
from baton.engine.checkpoint.config import ModelConfig, read_json
from baton.engine.checkpoint.load import read_config
from baton.engine.config import CacheConfig
from baton.platform.config import DeploymentConfig
from baton.platform.doctor.node_checks import GIB, Demand

WEIGHTS = (".safetensors", ".bin")


def demand_of(config: DeploymentConfig, folder: Path, *, is_on_gpu: bool) -> Demand:
    """Raises CheckpointError if the model cannot be read. On a GPU weights and KV are its own."""
    pools = (config.prefill, config.decode)
    num_replicas = sum(pool.replicas for pool in pools)
    memory_bytes = num_replicas * int(config.tiers.host.gib * GIB)
    if not is_on_gpu:
        model = read_config(folder)
        weights = weights_bytes(folder) if config.wants_weights else 0
        for pool in pools:
            kv = kv_bytes(pool.cache, model, config.dtype)
            memory_bytes += pool.replicas * (weights + kv)
    disk = config.tiers.disk
    return Demand(
        memory_bytes=memory_bytes,
        num_threads=sum(pool.replicas * (pool.resources.num_threads or 1) for pool in pools),
        num_replicas=num_replicas,
        disk_bytes={disk.folder: num_replicas * int(disk.gib * GIB)} if disk.folder else {},
    )


def kv_bytes(cache: CacheConfig, model: ModelConfig, dtype: str) -> int:
    """Of one replica on a CPU."""
    if cache.memory_gib is not None:
        return int(cache.memory_gib * GIB)
    if cache.num_blocks is None:
        return CPU_CACHE_BYTES
    kv_dtype = KV_DTYPES[cache.kv_dtype]
    served_dtype = (model.dtype or "float32") if dtype == "auto" else dtype
    layout = KvLayout(
        model_fingerprint=b"",
        dtype=served_dtype if kv_dtype == "auto" else kv_dtype,
        num_layers=model.num_layers,
        num_kv_heads=model.heads.num_kv_heads,
        head_dim=model.heads.head_dim,
        block_size=cache.block_size,
    )
    return cache.num_blocks * layout.block_bytes


def weights_bytes(folder: Path) -> int:
    """Of the files, or as an index announces them: they may not have been downloaded yet."""
    found = sum(path.stat().st_size for path in folder.iterdir() if path.suffix in WEIGHTS)
    announced = 0
    for index in folder.glob("*.index.json"):
        metadata = read_json(index).get("metadata")
        total = metadata.get("total_size") if isinstance(metadata, dict) else None
        announced = max(announced, total if isinstance(total, int) else 0)
    return max(found, announced)
