"""The models of the ranks of a mesh, by their sizes alone: nothing is read, and nothing kept."""

from __future__ import annotations

from collections.abc import Sequence

from baton.core.kv_layout import KvLayout
from baton.engine.mesh.mesh import Mesh
from baton.engine.models.config.model_config import ModelConfig
from baton.engine.models.registry import family_of
from baton.engine.sharding.cutting import share_of, share_of_kv
from baton.engine.sharding.stages import keep_stage, kv_of_layers, spread_layers
from baton.platform.layout_plan.pass_transfers import RankModel


def rank_models(
    whole: ModelConfig,
    layout: KvLayout,
    mesh: Mesh,
    dtype: str,
    *,
    device: str = "cpu",
    micro_batch_tokens: int = 64,
) -> Sequence[RankModel]:
    """One a stage: its ranks have models of the same sizes. `layout` is that of the whole model.

    Raises InvalidConfig if it cannot be split so.
    """
    share, family = share_of(whole, mesh), family_of(whole.architecture)
    own_kv = share_of_kv(layout, mesh.engine, 0)
    every = family.build(share)
    found = []
    for layers in spread_layers(every, share, mesh.pipeline):
        stage = every
        if mesh.pipeline > 1:
            stage = family.build(share)
            keep_stage(stage, layers)
        model = RankModel(
            whole=whole,
            own=stage,
            kv=kv_of_layers(own_kv, layers),
            mesh=mesh,
            dtype=dtype,
            device=device,
            micro_batch_tokens=micro_batch_tokens,
        )
        found.append(model)
    return found
