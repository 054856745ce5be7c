"""Mixture of experts: the weighted sum of each token's chosen feed-forwards.

    out[t] = sum over c of  p[t, c] * down[e] act(gate[e] x[t], up[e] x[t])      e = experts[t, c]
           + sigmoid(g[t]) * shared[t]

Every matrix may have a bias. If the input is scaled (Llama 4), p multiplies x, not the output.
`shared` is the shared expert's output, g its optional gate.

    grouped product     y[i] = W[e of pair i] x[i]   pairs by expert: see kernels/experts/routing.py

The ends of the groups stay on the device, so that no pass waits for them and graphs can include
them. Compiled CPU operators add a token's experts in the order of expert numbers, so results are
batch-invariant. torch and GPUs add them in the order of choice, with products split by the number
of pairs, unless weights are `is_batch_invariant`.

T tokens, C choices a token, P = T C pairs, E experts, D width, F feed-forward width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from baton.kernels.cpu import operators
from baton.kernels.elementwise.clamped_swiglu import clamped_swiglu
from baton.kernels.experts import moe_cpu as cpu
from baton.kernels.experts.packed_experts import PackedExperts
from baton.kernels.experts.packed_quantized_experts import PackedQuantizedExperts
from baton.kernels.experts.quantized_experts import QuantizedExperts
from baton.kernels.experts.routing import Routed
from baton.kernels.products.linear import GATES

ExpertWeight: TypeAlias = Tensor | PackedExperts | PackedQuantizedExperts | QuantizedExperts
"""W [E, N, K], in the form that the device multiplies fastest."""
CLAMPED = "clamped_swiglu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gating:
    """The gating function of an expert."""

    activation: str = "silu"
    """One of `GATES`, or `CLAMPED`."""
    alpha: float = 1.702
    limit: float = 7.0
    offset: float = 1.0
    """This and the next two fields are used by `CLAMPED` only."""

    def __call__(self, gate_up: Tensor) -> Tensor:
        """[T, 2F] -> [T, F]"""
        if self.activation == CLAMPED:
            return clamped_swiglu(gate_up, self.alpha, self.limit, self.offset)
        return GATES[self.activation](gate_up)


SWIGLU = Gating()


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ExpertWeights:
    """The weights of the experts of a layer."""

    gate_up: ExpertWeight
    """[E, 2F, D]"""
    down: ExpertWeight
    """[E, D, F], in the same form."""
    gate_up_bias: Tensor | None = None
    """[E, 2F]"""
    down_bias: Tensor | None = None
    """[E, D]"""
    gating: Gating = SWIGLU
    is_input_scaled: bool = False
    is_batch_invariant: bool = False
    """Whether results on a GPU must be batch-invariant; no library is used then."""


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """The shared expert's output."""

    out: Tensor
    """[T, D]"""
    gate: Tensor | None = None
    """[T, 1]: its sigmoid is the weight of `out`."""


def moe(x: Tensor, weights: ExpertWeights, routed: Routed, shared: Shared | None = None) -> Tensor:
    """x [T, D] -> [T, D]"""
    _check(x, weights, routed)
    gate_up, down = weights.gate_up, weights.down
    by_operators = (PackedExperts, PackedQuantizedExperts)
    if not (isinstance(gate_up, by_operators) and isinstance(down, by_operators)):
        return _by_groups(x, weights, routed, shared)
    if not operators.runs(x):
        return _by_groups(x, weights, routed, shared)
    scaled = weights.is_input_scaled
    inner = cpu.gate_up(x, gate_up, weights.gate_up_bias, weights.gating, routed, scaled=scaled)
    more = (None, None) if shared is None else (shared.out, shared.gate)
    return cpu.down(inner, down, weights.down_bias, routed, more, scaled=not scaled)


def stacks_of(weight: ExpertWeight) -> tuple[Tensor, ...]:
    """The tensors of a weight, each with a part of every expert."""
    found: tuple[Tensor | None, ...]
    match weight:
        case PackedExperts():
            found = (weight.packed,)
        case PackedQuantizedExperts():
            found = (weight.packed, weight.scales)
        case QuantizedExperts():
            found = (weight.items, weight.scales, weight.zeros)
        case _:
            found = (weight,)
    return tuple(tensor for tensor in found if tensor is not None)


def grouped_linear(x: Tensor, weights: ExpertWeight, stops: Tensor) -> Tensor:
    """x [P, K] sorted by expert, weights [E, N, K] -> [P, N]: each row multiplied by its expert's
    matrix."""
    if isinstance(weights, QuantizedExperts):
        return weights.grouped_linear(x, stops)
    if isinstance(weights, PackedQuantizedExperts):
        return _one_by_one(x, weights, stops)
    assert isinstance(weights, Tensor), "packed is what operators multiply"
    if x.dim() != 2 or weights.dim() != 3 or x.shape[1] != weights.shape[2]:
        raise ValueError(f"shapes do not fit: {x.shape=} {weights.shape=}")
    if stops.shape != weights.shape[:1] or stops.dtype is not torch.int32:
        raise ValueError(f"{len(weights)} experts with stops {stops.dtype} {tuple(stops.shape)}")
    if x.is_cuda:
        from baton.kernels.experts.grouped_linear_gpu import grouped_linear as on_gpu

        return on_gpu(x, weights, stops)
    y = x.new_empty(len(x), weights.shape[1])
    start = 0
    for expert, stop in enumerate(stops.tolist()):
        if stop > start:
            y[start:stop] = functional.linear(x[start:stop], weights[expert])
        start = stop
    return y


def _one_by_one(x: Tensor, weights: PackedQuantizedExperts, stops: Tensor) -> Tensor:
    """The same with a loop over experts, for lack of compiled operators."""
    y = x.new_empty(len(x), weights.shape[1])
    start = 0
    for expert, stop in enumerate(stops.tolist()):
        if stop > start:
            y[start:stop] = weights.one(expert).reference(x[start:stop], None).to(x.dtype)
        start = stop
    return y


def _by_groups(x: Tensor, weights: ExpertWeights, routed: Routed, shared: Shared | None) -> Tensor:
    """MoE by grouped products of torch or Triton."""
    if x.is_cuda:
        from baton.kernels.experts import moe_gpu as gpu

        gate_up, down = weights.gate_up, weights.down
        if gpu.takes(x, gate_up, routed, is_batch_invariant=weights.is_batch_invariant):
            assert isinstance(gate_up, (Tensor, QuantizedExperts))
            assert isinstance(down, (Tensor, QuantizedExperts))
            return gpu.moe(
                x,
                (gate_up, down),
                (weights.gate_up_bias, weights.down_bias),
                weights.gating,
                routed,
                (None, None) if shared is None else (shared.out, shared.gate),
                is_input_scaled=weights.is_input_scaled,
                is_batch_invariant=weights.is_batch_invariant,
            )
    pairs = routed.pairs.flatten().long()  # [P]
    num_choices = routed.experts.shape[1]
    experts, shares = routed.experts.flatten()[pairs].long(), routed.shares.flatten()[pairs, None]
    experts = experts.clamp(max=len(routed.stops) - 1) if routed.is_partial else experts
    rows = x[pairs // num_choices]
    if weights.is_input_scaled:
        rows, shares = (rows * shares).to(x.dtype), torch.ones_like(shares)
    inner = grouped_linear(rows, weights.gate_up, routed.stops)
    if weights.gate_up_bias is not None:
        inner = inner + weights.gate_up_bias[experts]
    outer = grouped_linear(weights.gating(inner), weights.down, routed.stops)
    if weights.down_bias is not None:
        outer = outer + weights.down_bias[experts]
    scaled = outer.float() * shares
    if routed.is_partial:  # rows after the last stop were not computed
        is_own = torch.arange(len(pairs), device=x.device) < routed.stops[-1]
        scaled = torch.where(is_own[:, None], scaled, 0.0)
    by_pair = torch.empty(outer.shape, device=x.device)
    by_pair[pairs] = scaled
    return with_shared(by_pair.view(len(x), num_choices, outer.shape[1]).sum(1), shared).to(x.dtype)


def with_shared(y: Tensor, shared: Shared | None) -> Tensor:
    """y [T, D] float32, the sum of routed experts, plus the shared expert's output."""
    if shared is None:
        return y
    part = 1.0 if shared.gate is None else shared.gate.float().sigmoid()
    return y + part * shared.out.float()


def _check(x: Tensor, weights: ExpertWeights, routed: Routed) -> None:
    num_experts, num_rows, width = weights.gate_up.shape
    fits = (
        x.shape[1:] == (width,)
        and x.dtype is weights.gate_up.dtype
        and tuple(weights.down.shape) == (num_experts, width, num_rows // 2)
        and routed.experts.shape == routed.shares.shape == routed.pairs.shape
        and len(routed.experts) == len(x)
        and routed.stops.shape == (num_experts,)
    )
    if not fits:
        raise ValueError(
            f"shapes do not fit: {x.shape=} {x.dtype=} {weights.gate_up.shape=} "
            f"{weights.down.shape=} {routed.experts.shape=} {routed.stops.shape=}"
        )


def reference(
    x: Tensor, weights: ExpertWeights, routed: Routed, shared: Shared | None = None
) -> Tensor:
    """The definition, token by token, for plain tensors; float32 except for intermediate results,
    which are rounded."""
    assert isinstance(weights.gate_up, Tensor) and isinstance(weights.down, Tensor)
    rows = []
    for token, experts, shares in zip(x, routed.experts.tolist(), routed.shares, strict=True):
        out = torch.zeros(weights.down.shape[1], device=x.device)
        for expert, share in zip(experts, shares, strict=True):
            given = (token.float() * share).to(x.dtype) if weights.is_input_scaled else token
            inner = weights.gate_up[expert].float() @ given.float()
            if weights.gate_up_bias is not None:
                inner = inner + weights.gate_up_bias[expert].float()
            gated = weights.gating(inner.unsqueeze(0)).squeeze(0).to(x.dtype)
            outer = weights.down[expert].float() @ gated.float()
            if weights.down_bias is not None:
                outer = outer + weights.down_bias[expert].float()
            out = out + (outer if weights.is_input_scaled else share * outer)
        rows.append(out)
    return with_shared(torch.stack(rows), shared).to(x.dtype)
