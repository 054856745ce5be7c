"""Tensor parallelism: the sizes of one rank's model, and its part of each tensor of a checkpoint.

    whole model   (shapes only)   --|
    rank's model  (shapes only)   --+-->  cut(a tensor of the checkpoint)  -->  the rank's part
    share         rank, ranks     --|

Kernels know nothing of ranks: a rank's model is an ordinary model with fewer heads and a narrower
feed-forward layer.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor, nn

from baton.core.errors import InvalidConfig
from baton.core.kv_layout import KvLayout
from baton.engine.layers.attention import Attention, HeadShape
from baton.engine.layers.embedding import Embedding
from baton.engine.layers.linear import Linear
from baton.engine.layers.mla import LatentHeads
from baton.engine.layers.moe import DOWN, DOWN_BIAS, Experts
from baton.engine.mesh.expert_exchange import ExpertExchange
from baton.engine.mesh.expert_map import num_slots
from baton.engine.mesh.mesh import Mesh
from baton.engine.mesh.ranks import MeshGroups, RankGroup
from baton.engine.mesh.split import Share, Split
from baton.engine.models.config.model_config import LayerConfig, ModelConfig
from baton.engine.models.config.moe import MoeConfig
from baton.engine.models.skeleton.decoder import Decoder
from baton.engine.sharding.held_experts import check_experts
from baton.engine.sharding.placement import WeightPlacement
from baton.engine.sharding.stages import check_stages


def share_of(config: ModelConfig, mesh: Mesh) -> ModelConfig:
    """The configuration of one rank's model. With pipeline stages a rank keeps some of its layers
    only: see `stages.py`.

    Raises InvalidConfig if the model cannot be split over `mesh`.
    """
    mesh.check_data()
    check_context(mesh)
    check_stages(config, mesh)
    check_experts(config, mesh)
    check_compressed(config, mesh)
    size = mesh.tensor
    return replace(
        config,
        heads=config.heads if config.compressed is not None else _heads(config.heads, size),
        latent=None if config.latent is None else config.latent.shared_by(size),
        intermediate_size=_part(config.intermediate_size, size, "intermediate_size"),
        vocab_size=config.vocab_size // (size if splits_vocabulary(config, size) else 1),
        layers=tuple(_layer(layer, mesh) for layer in config.layers),
    )


def check_compressed(config: ModelConfig, mesh: Mesh) -> None:
    """Raise InvalidConfig for pipeline parallelism of a model with compressed attention. Every
    tensor rank has all attention heads of such a model, as in its authors' implementation; only
    experts are split."""
    if config.compressed is None:
        return
    if mesh.pipeline > 1:
        raise InvalidConfig(
            f"pipeline parallel {mesh.pipeline}: this model has several residual streams, and "
            "pipeline stages pass on one only; set parallel.pipeline to 1"
        )


def check_context(mesh: Mesh) -> None:
    """Raise InvalidConfig for what cannot be combined with context parallelism."""
    name = f"context parallel {mesh.context}"
    if mesh.context == 1:
        return
    if mesh.pipeline > 1:
        raise InvalidConfig(
            f"{name} with pipeline parallel {mesh.pipeline}: pipeline stages split a prompt into "
            "micro-batches already; use one of the two"
        )
    if mesh.expert > mesh.tensor:
        allowed = "1" if mesh.tensor == 1 else f"1 or to {mesh.tensor}, the number of tensor ranks"
        raise InvalidConfig(
            f"{name} with expert parallel {mesh.expert}: ranks that compute different tokens do "
            f"not share experts; set parallel.expert to {allowed}"
        )


def splits_vocabulary(config: ModelConfig, size: int) -> bool:
    """Whether `size` tensor ranks split the vocabulary; otherwise each has the whole embedding and
    the whole output head."""
    return config.vocab_size % size == 0


def _heads(heads: HeadShape, size: int) -> HeadShape:
    num_kv_heads = heads.num_kv_heads
    if num_kv_heads % size and size % num_kv_heads:
        raise InvalidConfig(
            f"tensor parallel {size}: the model has {num_kv_heads} KV heads; the number of ranks "
            "must divide it or be a multiple of it"
        )
    return replace(
        heads,
        num_heads=_part(heads.num_heads, size, "num_attention_heads"),
        num_kv_heads=max(1, num_kv_heads // size),
    )


def _layer(layer: LayerConfig, mesh: Mesh) -> LayerConfig:
    return layer if layer.moe is None else replace(layer, moe=_moe(layer.moe, mesh))


def _moe(moe: MoeConfig, mesh: Mesh) -> MoeConfig:
    """A slice of every expert or, with expert parallelism, some whole experts."""
    size, num_experts = mesh.tensor, moe.routing.num_experts
    shared_width = _part(moe.shared_width, size, "shared_expert_intermediate_size")
    if mesh.expert > 1:
        count = num_slots(num_experts, mesh.expert, mesh.redundant_experts)
        return replace(moe, num_slots=count, shared_width=shared_width)
    width = _part(moe.expert_width, size, "moe_intermediate_size")
    return replace(moe, expert_width=width, shared_width=shared_width)


def _part(whole: int, size: int, key: str) -> int:
    if whole % size:
        raise InvalidConfig(f"tensor parallel {size} must divide `{key}`, which is {whole}")
    return whole // size


def share_of_kv(layout: KvLayout, mesh: Mesh, rank: int) -> KvLayout:
    """The layout of a rank's share of the KV: some of the KV heads, at least one. Latent KV (MLA)
    counts as one head, so every rank stores all of it."""
    own = max(1, layout.num_kv_heads // mesh.tensor)
    span = Share(mesh.place(rank).tensor, mesh.tensor).span(layout.num_kv_heads, own)
    return replace(layout, num_kv_heads=own, first_kv_head=span.start)


def join_ranks(model: Decoder, groups: MeshGroups, *, splits_vocabulary: bool) -> None:
    """Give the modules of a rank's model the groups of ranks with which they sum or gather their
    results."""
    for module in model.modules():
        if isinstance(module, Experts | Linear) and adds_up(module):
            module.ranks = groups.tensor
        if isinstance(module, Experts) and groups.mesh.expert > groups.mesh.tensor:
            module.exchange = _exchange(groups)
    if splits_vocabulary:
        for name, part in model.named_children():
            if name in ("embed", "head"):  # a stage may have neither
                assert isinstance(part, Embedding | Linear)
                if not (isinstance(part, Linear) and part.split is Split.NONE):
                    part.ranks = groups.tensor


def adds_up(module: nn.Module) -> bool:
    """Whether the module's results on all tensor ranks are summed by an all-reduce."""
    match module:
        case Linear():
            return module.split is Split.INPUTS and not module.gives_summands
        case _:
            return isinstance(module, Experts)


def _exchange(groups: MeshGroups) -> ExpertExchange:
    assert isinstance(groups.expert, RankGroup), "experts are spread over more than one rank"
    share = Share(groups.place.tensor, groups.mesh.tensor)
    return ExpertExchange(groups.expert, share, max_tokens=0)


class Cutter:
    """Cuts one rank's part out of the tensors of a checkpoint."""

    def __init__(self, whole: nn.Module, own: nn.Module, groups: MeshGroups) -> None:
        """`whole` and `own` are the whole model and the rank's model; only their shapes are
        used."""
        self._whole = whole
        self._own = own
        self._share = Share(groups.place.tensor, groups.mesh.tensor)
        self._has_whole_experts = groups.mesh.expert > 1

    def keeps_whole(self, target: str) -> bool:
        """Whether the rank has the parameter `target` whole, or whole experts of it."""
        module = self._own.get_submodule(target.rpartition(".")[0])
        return self._share.size == 1 or (self._has_whole_experts and isinstance(module, Experts))

    def cut(self, source: WeightPlacement, tensor: Tensor) -> Tensor:
        """The rank's part of `tensor`, the checkpoint's tensor of `source`; a view if the part is
        contiguous rows or columns."""
        prefix, _, name = source.target.rpartition(".")
        whole, own = self._whole.get_submodule(prefix), self._own.get_submodule(prefix)
        match own:
            case Experts():
                assert isinstance(whole, Experts)
                if self._has_whole_experts:
                    return tensor
                return self._cut_expert(name, tensor, whole.hidden_width, own.hidden_width)
            case Linear() if own.split is Split.INPUTS:
                return self._share.columns(tensor) if tensor.dim() == 2 else tensor
            case Linear() if own.split is Split.OUTPUTS:
                assert isinstance(whole, Linear)
                return self._cut_rows(source, tensor, whole.rows, own.rows)
            case Embedding() | LatentHeads() | Attention():  # of attention: its sinks, one per head
                return tensor[self._share.span(len(tensor), len(getattr(own, name)))]
        return tensor

    def _cut_rows(
        self, source: WeightPlacement, tensor: Tensor, whole: tuple[int, ...], own: tuple[int, ...]
    ) -> Tensor:
        if len(tensor) == sum(whole):
            return self._share.rows(tensor, whole, own)
        part = list(accumulate(whole, initial=0)).index(source.rows.start)
        return tensor[self._share.span(whole[part], own[part])]

    def _cut_expert(self, name: str, tensor: Tensor, whole: int, own: int) -> Tensor:
        """The rank's part of one expert's tensor `name`: gate and up projections or one of them,
        down projection, or a bias. `whole` and `own` are hidden widths."""
        if name == DOWN:
            return self._share.columns(tensor)
        if name == DOWN_BIAS:  # added once to the sum over ranks, so only rank 0 has it
            return tensor if self._share.rank == 0 else torch.zeros_like(tensor)
        matrices = len(tensor) // whole
        return self._share.rows(tensor, (whole,) * matrices, (own,) * matrices)
