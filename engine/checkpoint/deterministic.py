"""Whether what a model computes can be the same for a request whatever is computed beside it.

    a CPU with operators    it is so anyway, on a rank or on two that share matrices
    a GPU                   products by our tiles, the same for any number of rows, those of experts
                            for any number of pairs; attention by splits and tiles of one size
    latent attention        always absorbed, on both: else its form follows from chunks of prompts

What neither has one order for is refused, not served as if it had.
"""

from __future__ import annotations

import torch

from baton.core.errors import InvalidConfig
from baton.engine.layers.moe import Experts
from baton.engine.mesh.mesh import Mesh
from baton.engine.mesh.ranks import ONE_RANK, MeshGroups
from baton.engine.models.config.model_config import ModelConfig
from baton.engine.models.skeleton.decoder import Decoder
from baton.kernels.cpu import operators
from baton.kernels.latent_attention.mla_attention_cpu import MAX_ROW_BYTES
from baton.kernels.products.linear_cpu import DEPTHS

WORD = ", sums in one order"
"""What sets the KV of such a GPU apart."""


def check_deterministic(
    model: Decoder, config: ModelConfig, device: str, dtype: str, groups: MeshGroups = ONE_RANK
) -> None:
    """Raise InvalidConfig for what `deterministic` cannot be kept for."""
    if torch.device(device).type == "cpu":
        if not operators.runs(torch.empty(0, dtype=getattr(torch, dtype))):
            raise InvalidConfig(
                f"deterministic with dtype {dtype!r} on this CPU: torch multiplies, in an order "
                "that follows the batch; set dtype to bfloat16 or float32, and see that "
                "`baton doctor` finds compiled kernels"
            )
        _check_latents_on_cpus(config, getattr(torch, dtype))
        _check_ranks_on_cpus(groups.mesh)
        return
    if config.compressed is not None:
        raise InvalidConfig(
            "deterministic is not there for compressed attention (DeepSeek V4) on a GPU, where "
            "torch attends; leave deterministic off"
        )
    if groups.mesh.size > 1:
        raise InvalidConfig(
            "deterministic on several GPUs (parallel): how NCCL adds up follows from how much it "
            "is given; serve replicas of one GPU each, or leave deterministic off"
        )


def fix_order(model: Decoder) -> None:
    """Let a GPU multiply by experts in one order, and latents have one form; other matrices, and
    those of latents, are made so when installed."""
    model.latent = None
    for part in model.modules():
        if isinstance(part, Experts):
            part.is_fixed = True


def _check_latents_on_cpus(config: ModelConfig, dtype: torch.dtype) -> None:
    """Whether operators take what torch, which has no one order, would take else."""
    if config.latent is None:
        return
    shape = config.latent.shape
    row_bytes, depth = shape.cached_dim * dtype.itemsize, DEPTHS[dtype]
    if row_bytes > MAX_ROW_BYTES or shape.nope_dim % depth or shape.latent_dim % depth:
        raise InvalidConfig(
            f"deterministic with latents of {shape.cached_dim} numbers in {dtype} on this CPU: "
            f"operators take {MAX_ROW_BYTES} bytes of a token at most, and widths that are "
            f"multiples of {depth}; leave deterministic off"
        )


def _check_ranks_on_cpus(mesh: Mesh) -> None:
    if mesh.tensor > 2:
        raise InvalidConfig(
            f"deterministic with tensor parallel {mesh.tensor}: with three ranks or more the order "
            "in which a sum is added follows from where it lies in the message; take two ranks at "
            "most, or leave deterministic off"
        )
    if mesh.expert > 1 and mesh.data == 1:
        raise InvalidConfig(
            f"deterministic with expert parallel {mesh.expert}: the order in which a token's "
            "experts are added follows from which rank has which, and that from all requests; set "
            "expert parallel to 1, or leave deterministic off"
        )
