"""Whether what a model computes can be the same for a request whatever is computed beside it.

    a CPU with operators    it is so anyway, on a rank or on two that share matrices
    a GPU                   products by our tiles, the same for any number of rows, those of experts
                            for any number of pairs; attention by splits and tiles of one size

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
        if model.latent is not None:
            raise InvalidConfig(_why("latent attention, whose form follows from chunks of prompts"))
        _check_ranks_on_cpus(groups.mesh)
        return
    if config.num_vectors == 1:
        raise InvalidConfig(_why("latent attention, whose splits follow from the contexts"))
    if groups.mesh.size > 1:
        raise InvalidConfig(
            "deterministic on several GPUs (parallel): how NCCL adds up follows from how much it "
            "is given; serve replicas of one GPU each, or leave deterministic off"
        )


def fix_experts(model: Decoder) -> None:
    """Let a GPU multiply by experts in one order; other matrices are made so when installed."""
    for part in model.modules():
        if isinstance(part, Experts):
            part.is_fixed = True


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


def _why(what: str) -> str:
    return f"deterministic is not there for models with {what}; leave deterministic off"
