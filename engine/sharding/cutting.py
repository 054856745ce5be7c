"""What of a model a rank has: its sizes, and its part of each tensor.

    whole model (its sizes alone)  --|
    own model   (its sizes alone)  --+-->  cut(a tensor of the checkpoint)  -->  the rank's part
    share       rank, ranks        --|

kernels know nothing of ranks: a rank's model is a model with fewer heads, and a narrower
feed-forward.
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
    """The model that each rank has, or of whose layers it has some: see `stages.py`.

    Raises InvalidConfig if it cannot be split so.
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
    """Raises InvalidConfig for what ranks cannot do where contexts are compressed. All of the
    attention is on every tensor rank, as authors have it; experts are split."""
    if config.compressed is None:
        return
    if mesh.pipeline > 1:
        raise InvalidConfig(
            f"pipeline parallel {mesh.pipeline}: the residual of this model is "
            "several streams, and stages hand one on"
        )


def check_context(mesh: Mesh) -> None:
    """Raises InvalidConfig for what ranks that share tokens cannot do as well."""
    name = f"context parallel {mesh.context}"
    if mesh.context == 1:
        return
    if mesh.pipeline > 1:
        raise InvalidConfig(
            f"{name} with pipeline parallel {mesh.pipeline}: stages cut a prompt into micro-batches"
            " already; take one of the two"
        )
    if mesh.expert > mesh.tensor:
        raise InvalidConfig(
            f"{name} with expert parallel {mesh.expert}: ranks with unlike tokens do not share "
            f"experts; spread them over the {mesh.tensor} tensor ranks, or cut each (1)"
        )


def splits_vocabulary(config: ModelConfig, size: int) -> bool:
    """Whether the vocabulary is split; else every rank has all of the embedding and of the head."""
    return config.vocab_size % size == 0


def _heads(heads: HeadShape, size: int) -> HeadShape:
    num_kv_heads = heads.num_kv_heads
    if num_kv_heads % size and size % num_kv_heads:
        raise InvalidConfig(
            f"tensor parallel {size}: {num_kv_heads} KV heads are neither spread evenly over as "
            "many ranks nor kept evenly by them"
        )
    return replace(
        heads,
        num_heads=_part(heads.num_heads, size, "num_attention_heads"),
        num_kv_heads=max(1, num_kv_heads // size),
    )


def _layer(layer: LayerConfig, mesh: Mesh) -> LayerConfig:
    return layer if layer.moe is None else replace(layer, moe=_moe(layer.moe, mesh))


def _moe(moe: MoeConfig, mesh: Mesh) -> MoeConfig:
    """Slices of all experts, or some whole ones."""
    size, num_experts = mesh.tensor, moe.routing.num_experts
    shared_width = _part(moe.shared_width, size, "shared_expert_intermediate_size")
    if mesh.expert > 1:
        count = num_slots(num_experts, mesh.expert, mesh.redundant_experts)
        return replace(moe, num_slots=count, shared_width=shared_width)
    width = _part(moe.expert_width, size, "moe_intermediate_size")
    return replace(moe, expert_width=width, shared_width=shared_width)


def _part(whole: int, size: int, key: str) -> int:
    if whole % size:
        raise InvalidConfig(f"tensor parallel {size}: `{key}` {whole} is no multiple of it")
    return whole // size


def share_of_kv(layout: KvLayout, mesh: Mesh, rank: int) -> KvLayout:
    """What a rank keeps of a model's KV: some heads; of latents, which are one, all."""
    own = max(1, layout.num_kv_heads // mesh.tensor)
    span = Share(mesh.place(rank).tensor, mesh.tensor).span(layout.num_kv_heads, own)
    return replace(layout, num_kv_heads=own, first_kv_head=span.start)


def join_ranks(model: Decoder, groups: MeshGroups, *, splits_vocabulary: bool) -> None:
    """Let the parts of a rank's model know whom they add up with."""
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
    """Whether it makes a whole of what tensor ranks have of its result."""
    match module:
        case Linear():
            return module.split is Split.INPUTS and not module.gives_summands
        case _:
            return isinstance(module, Experts)


def _exchange(groups: MeshGroups) -> ExpertExchange:
    assert isinstance(groups.expert, RankGroup), "of more ranks than tensors are spread over"
    share = Share(groups.place.tensor, groups.mesh.tensor)
    return ExpertExchange(groups.expert, share, max_tokens=0)


class Cutter:
    """The parts of one rank."""

    def __init__(self, whole: nn.Module, own: nn.Module, groups: MeshGroups) -> None:
        """Only the shapes of both models are looked at."""
        self._whole = whole
        self._own = own
        self._share = Share(groups.place.tensor, groups.mesh.tensor)
        self._has_whole_experts = groups.mesh.expert > 1

    def keeps_whole(self, target: str) -> bool:
        """Whether the weight of that name, or what a rank has of it, is whole, or whole experts."""
        module = self._own.get_submodule(target.rpartition(".")[0])
        return self._share.size == 1 or (self._has_whole_experts and isinstance(module, Experts))

    def cut(self, source: WeightPlacement, tensor: Tensor) -> Tensor:
        """The rank's part of what lies at `source`; a view where it is in one piece."""
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
            case Embedding() | LatentHeads() | Attention():  # attention's sinks: one a head
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
        """The rank's part of one expert: of its gate, its up, both; its down; or their biases."""
        if name == DOWN:
            return self._share.columns(tensor)
        if name == DOWN_BIAS:  # a bias of the sum: one rank adds it
            return tensor if self._share.rank == 0 else torch.zeros_like(tensor)
        matrices = len(tensor) // whole
        return self._share.rows(tensor, (whole,) * matrices, (own,) * matrices)
