"""FLOPs and bytes of a loaded model's steps, from its shape."""

from __future__ import annotations

from collections.abc import Sequence

from baton.engine.mesh.mesh import Mesh
from baton.engine.passes.runner import ModelRunner, Runner
from baton.engine.ranks.lead import LeadRunner
from baton.engine.ranks.lockstep import LockstepRunner
from baton.platform.models.model_shape import ModelShape, Part, Product, shape_of
from baton.replica_core.step_meter import ExpertWeights, StepCost

ALONE = Mesh()


def step_cost(runner: Runner) -> StepCost:
    """Step cost of the part of the model that this process has; nothing for an engine without a
    model."""
    if isinstance(runner, LeadRunner | LockstepRunner):
        return step_cost(runner.own)
    if not isinstance(runner, ModelRunner):
        return StepCost()
    shape = shape_of(runner.model, runner.cache.layout, runner.info.dtype)
    return cost_of(shape, runner.groups.mesh)


def cost_of(shape: ModelShape, mesh: Mesh = ALONE) -> StepCost:
    """Assumes that other data places run as many tokens as this one."""
    layers = [product for product in shape.products if product.part is not Part.HEAD]
    heads = [product for product in shape.products if product.part is Part.HEAD]
    whole = [product for product in shape.products if product.experts is None]
    return StepCost(
        token_flops=_flops(layers, mesh),
        request_flops=_flops(heads, mesh),
        pair_flops=sum(4.0 * one.num_heads * one.head_dim for one in shape.attentions),
        weight_bytes=float(sum(product.num_bytes for product in whole)),
        experts=tuple(
            ExpertWeights(*product.experts, product.num_bytes, mesh.num_expert_places)
            for product in shape.products
            if product.experts is not None
        ),
        token_kv_bytes=float(sum(one.kv_token_bytes for one in shape.attentions)),
    )


def _flops(products: Sequence[Product], mesh: Mesh) -> float:
    return sum(2.0 * one.width * one.num_rows * _products_a_row(one, mesh) for one in products)


def _products_a_row(product: Product, mesh: Mesh) -> float:
    """Products per row, where whole experts get an even part of the rows of all data places."""
    if product.experts is None:
        return 1.0
    return product.num_choices * mesh.num_expert_places / mesh.expert
