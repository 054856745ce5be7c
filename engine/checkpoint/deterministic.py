"""The `deterministic` option (batch invariance): a request's outputs do not depend on which other
requests are computed in the same pass.

    CPU with operators      always so, on one rank or on two tensor-parallel ranks
    GPU                     matrix products use tiles that are the same for any number of rows, and
                            of pairs for experts; attention uses splits and tiles of fixed size
    latent attention        always in absorbed form, on both: otherwise its form depends on how
                            prompts are cut into chunks

Where sums have no fixed order the option is refused.
"""

from __future__ import annotations

import torch

from baton.core.errors import InvalidConfig
from baton.engine.layers.moe import Experts
from baton.engine.mesh.mesh import Mesh
from baton.engine.mesh.ranks import ONE_RANK
from baton.engine.models.config.model_config import ModelConfig
from baton.engine.models.skeleton.decoder import Decoder
from baton.kernels.cpu import operators
from baton.kernels.latent_attention.mla_attention_cpu import MAX_ROW_BYTES
from baton.kernels.products.linear_cpu import DEPTHS

WORD = ", sums in one order"
"""Part of a model's fingerprint with the option on a GPU: KV is not shared with replicas
without."""


def check_deterministic(
    config: ModelConfig, device: str, dtype: str, mesh: Mesh = ONE_RANK.mesh
) -> None:
    """Raise InvalidConfig if `deterministic` is not supported for this model, device, dtype and
    layout of ranks."""
    if torch.device(device).type == "cpu":
        if not operators.runs(torch.empty(0, dtype=getattr(torch, dtype))):
            raise InvalidConfig(
                f"deterministic with dtype {dtype!r} on this CPU: matrix products are computed by "
                "torch, in an order that depends on the batch; set dtype to bfloat16 or float32, "
                "and see that `baton doctor` finds compiled kernels"
            )
        _check_latents_on_cpus(config, getattr(torch, dtype))
        _check_ranks_on_cpus(mesh)
        return
    if config.compressed is not None:
        raise InvalidConfig(
            "deterministic is not supported for compressed attention (DeepSeek V4) on a GPU, where "
            "attention is computed by torch; leave deterministic off"
        )
    if mesh.size > 1:
        raise InvalidConfig(
            "deterministic is not supported on several GPUs (parallel): NCCL's order of summation "
            "depends on the message size; serve replicas of one GPU each, or leave deterministic "
            "off"
        )


def fix_order(model: Decoder) -> None:
    """Make a model deterministic once it is loaded: experts are multiplied in a fixed order, and
    latent attention has one form. Other weights are prepared for it when they are installed."""
    model.latent = None
    for part in model.modules():
        if isinstance(part, Experts):
            part.is_batch_invariant = True


def _check_latents_on_cpus(config: ModelConfig, dtype: torch.dtype) -> None:
    """Raise InvalidConfig if the CPU operators do not support this latent attention: torch would
    compute it, in no fixed order."""
    if config.latent is None:
        return
    shape = config.latent.shape
    row_bytes, depth = shape.cached_dim * dtype.itemsize, DEPTHS[dtype]
    if row_bytes > MAX_ROW_BYTES or shape.nope_dim % depth or shape.latent_dim % depth:
        raise InvalidConfig(
            f"deterministic with latents of {shape.cached_dim} numbers in {dtype} on this CPU: "
            f"operators support at most {MAX_ROW_BYTES} bytes per token, and widths that are "
            f"multiples of {depth}; leave deterministic off"
        )


def _check_ranks_on_cpus(mesh: Mesh) -> None:
    if mesh.tensor > 2:
        raise InvalidConfig(
            f"deterministic with tensor parallel {mesh.tensor}: with three ranks or more the order "
            "of summation depends on a value's place in the message; use at most two ranks, or "
            "leave deterministic off"
        )
    if mesh.expert > 1 and mesh.data == 1:
        raise InvalidConfig(
            f"deterministic with expert parallel {mesh.expert}: the order in which a token's "
            "experts are added depends on which rank has which expert, and that on all requests; "
            "set parallel.expert to 1, or leave deterministic off"
        )
