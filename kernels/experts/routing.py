"""Routing: the top C of E experts by the router's logits, and their weights.

    s[t, e] = softmax over e, sigmoid, or root of softplus, of z[t, e] = logits[t, e] + b[e]
    chosen  = the C largest of  s[t, e] + c[e]  , best first; ties go to the lower number
    p[t, e] = scale * s[t, e] / (1 or the sum over the chosen)

c is DeepSeek's correction bias, which balances the load without an auxiliary loss: it affects the
choice, not the weight. With expert groups, the best groups are chosen first, by the sum of their
best one or two scores. Scores may also be computed over the chosen only: then z is compared, and
softmax is over C. Or a table chooses by token id (DeepSeek V4): then only the weights are computed.

    pairs (t, c) sorted by expert    | expert 0   | 1 | 2        | ...             P = T C pairs
                                     0            ^ stops[0]     ^ stops[2] ...

T tokens, C choices a token, E experts. All arithmetic is float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor
from torch.nn import functional

from baton.kernels.cpu import operators
from baton.kernels.experts import routing_cpu as cpu
from baton.kernels.products.weight import Weight

TINY = 1e-20
"""Added to sums of sigmoids, which may be 0."""


class Score(StrEnum):
    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    SOFTMAX_OF_CHOSEN = "softmax of chosen"
    SIGMOID_OF_CHOSEN = "sigmoid of chosen"
    ROOT_OF_SOFTPLUS = "root of softplus"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertGroups:
    """Groups of consecutive experts; only experts in the best groups can be chosen."""

    num_groups: int
    num_chosen: int
    num_best: int = 1
    """Number of an expert group's best scores, 1 or 2, whose sum is the score of the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """The settings of a router. Raises ValueError for impossible ones."""

    num_experts: int
    num_choices: int
    score: Score = Score.SOFTMAX
    is_normalised: bool = False
    """Whether the shares of a token are normalized to add up to `scale`."""
    scale: float = 1.0
    groups: ExpertGroups | None = None

    def __post_init__(self) -> None:
        groups = self.groups or ExpertGroups(num_groups=1, num_chosen=1)
        size, rest = divmod(self.num_experts, groups.num_groups)
        if rest or not 1 <= groups.num_chosen <= groups.num_groups:
            raise ValueError(f"{self.num_experts} experts do not come in {groups}")
        if not 1 <= groups.num_best <= min(2, size):
            raise ValueError(f"groups of {size} experts are not ranked by {groups.num_best}")
        if not 1 <= self.num_choices <= size * groups.num_chosen:
            raise ValueError(
                f"{self.num_choices} of {size * groups.num_chosen} experts cannot be chosen"
            )


@dataclass(frozen=True, slots=True, eq=False)
class ByToken:
    """Experts chosen by token id, from a table."""

    tokens: Tensor  # [T] int64
    table: Tensor  # [V, C] int64


@dataclass(frozen=True, slots=True)
class Routed:
    """The routing of a pass's tokens."""

    experts: Tensor
    """[T, C] int32, best first."""
    shares: Tensor
    """[T, C] float32"""
    pairs: Tensor
    """[T, C] int32: all pairs, as token * C + choice, flattened and sorted by expert, then by
    token."""
    stops: Tensor
    """[E] int32: the end of each expert's pairs. The differences are the load of the pass."""
    is_partial: bool = False
    """Whether experts are slots of this rank, and pairs after the last stop belong to other
    ranks."""


def router_logits(x: Tensor, weight: Weight) -> Tensor:
    """x [T, D] -> float32 [T, E]. Not rounded, since rounding might change the choice of
    experts."""
    if isinstance(weight, Tensor):
        if x.is_cuda and x.dtype is weight.dtype:
            from baton.kernels.products.linear_gpu import FEW_ROWS, linear_tiles

            if 0 < len(x) <= FEW_ROWS:  # products of 16 bits are exact in float32
                return linear_tiles(x, weight, dtype=torch.float32)
        return functional.linear(x.float(), weight.float())
    return weight.logits(x)


def route(
    logits: Tensor,
    routing: Routing,
    *,
    bias: Tensor | None = None,
    correction: Tensor | None = None,
    by_token: ByToken | None = None,
) -> Routed:
    """Routes logits [T, E]. `bias` [E] is added to the logits, `correction` [E] to the scores when
    choosing."""
    if logits.dim() != 2 or logits.shape[1] != routing.num_experts:
        raise ValueError(f"logits of {routing.num_experts} experts are wanted: {logits.shape=}")
    given = [tensor for tensor in (logits, bias, correction) if tensor is not None]
    if any(tensor.dtype is not torch.float32 for tensor in given):
        raise ValueError(f"float32 is wanted: {[tensor.dtype for tensor in given]}")
    if any(tensor.shape != (routing.num_experts,) for tensor in given[1:]):
        raise ValueError(f"one for each expert is wanted: {bias=} {correction=}")
    if logits.is_cuda and by_token is None:
        experts, shares = _choose_on_gpu(logits, routing, bias, correction)
    elif operators.runs(*given):
        return Routed(*cpu.route(logits, routing, bias, correction, by_token))
    else:
        experts, shares = reference(
            logits, routing, bias=bias, correction=correction, by_token=by_token
        )
    return routed_to(experts, shares, routing.num_experts)


def _choose_on_gpu(
    logits: Tensor, routing: Routing, bias: Tensor | None, correction: Tensor | None
) -> tuple[Tensor, Tensor]:
    from baton.kernels.experts import routing_gpu as gpu

    groups = routing.groups or ExpertGroups(num_groups=1, num_chosen=1)
    return gpu.choose_experts(
        logits,
        bias,
        correction,
        score=routing.score.value,
        num_choices=routing.num_choices,
        is_normalised=routing.is_normalised,
        scale=routing.scale,
        groups=(groups.num_groups, groups.num_chosen, groups.num_best),
    )


def routed_to(experts: Tensor, shares: Tensor, num_experts: int) -> Routed:
    """`Routed` from experts and shares [T, C] that were chosen elsewhere."""
    if experts.is_cuda:
        from baton.kernels.experts import routing_gpu as gpu

        if 0 < experts.numel() <= gpu.MOST_PAIRS:
            numbers = experts.to(torch.int32)
            return Routed(numbers, shares.float(), *gpu.sort_pairs(numbers, num_experts))
    ranked, pairs = experts.flatten().sort(stable=True)
    every = torch.arange(num_experts, device=experts.device, dtype=experts.dtype)
    stops = torch.searchsorted(ranked, every, right=True).to(torch.int32)
    pairs = pairs.to(torch.int32).view(experts.shape)
    return Routed(experts.to(torch.int32), shares.float(), pairs, stops)


def reference(
    logits: Tensor,
    routing: Routing,
    *,
    bias: Tensor | None = None,
    correction: Tensor | None = None,
    by_token: ByToken | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition: experts [T, C] and their shares."""
    z = logits if bias is None else logits + bias
    scores = _scores(z, routing.score)
    compared = scores if correction is None else scores + correction
    if by_token is not None:
        experts = by_token.table[by_token.tokens]
    else:
        experts = _best(_in_best_groups(compared, routing.groups), routing.num_choices)
    shares = scores.gather(1, experts)
    if routing.score is Score.SOFTMAX_OF_CHOSEN:
        shares = shares.softmax(-1)
    elif routing.score is Score.SIGMOID_OF_CHOSEN:
        shares = shares.sigmoid()
    if routing.is_normalised:
        shares = shares / (shares.sum(-1, keepdim=True) + TINY)
    return experts, shares * routing.scale


def _scores(z: Tensor, score: Score) -> Tensor:
    if score is Score.SOFTMAX:
        return z.softmax(-1)
    if score is Score.ROOT_OF_SOFTPLUS:
        return functional.softplus(z).sqrt()
    return z.sigmoid() if score is Score.SIGMOID else z


def _in_best_groups(compared: Tensor, groups: ExpertGroups | None) -> Tensor:
    """Scores in which all experts outside the best groups are below all others."""
    if groups is None:
        return compared
    num_groups = groups.num_groups
    by_group = compared.view(len(compared), num_groups, compared.shape[1] // num_groups)
    of_groups = by_group.topk(groups.num_best, dim=-1).values.sum(-1)
    is_chosen = torch.zeros_like(of_groups, dtype=torch.bool)
    is_chosen.scatter_(1, _best(of_groups, groups.num_chosen), True)
    others: Tensor = ~is_chosen.unsqueeze(-1)
    return by_group.masked_fill(others, float("-inf")).flatten(1)


def _best(scores: Tensor, count: int) -> Tensor:
    """The largest scores by a stable sort; `topk` is not stable."""
    return scores.argsort(dim=-1, descending=True, stable=True)[:, :count]
