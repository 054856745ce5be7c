# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""Chooses experts and sorts their pairs in two launches; torch needs twenty.

    a program    one token: scores of its experts, the best groups, the best experts, their shares
    one program  all pairs of the pass: a counting sort by expert

This is bound by the launches: a decode pass has a few hundred pairs. More than MOST_PAIRS are
sorted by torch. See kernels/experts/routing.py for the definition.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_PAIRS = 2048
"""Most (token, expert) pairs that one program sorts."""
LAST = tl.constexpr(0x7FFFFFFF)
SOFTPLUS_IS_LINEAR = tl.constexpr(20.0)
"""softplus(x) = x from here on, as in torch."""
TINY = tl.constexpr(1e-20)


def choose_experts(  # what kernels/experts/routing.py says of a router
    logits: Tensor,
    bias: Tensor | None,
    correction: Tensor | None,
    *,
    score: str,
    num_choices: int,
    is_normalised: bool,
    scale: float,
    groups: tuple[int, int, int],
) -> tuple[Tensor, Tensor]:
    """float32 logits [T, E] -> experts [T, C] int32 and shares [T, C] float32.

    `groups`: number of groups, number of chosen groups, and number of scores that are added to a
    group's score.
    """
    num_tokens, num_experts = logits.shape
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    experts = torch.empty(num_tokens, num_choices, dtype=torch.int32, device=logits.device)
    shares = torch.empty(num_tokens, num_choices, dtype=torch.float32, device=logits.device)
    num_groups, num_chosen, num_best = groups
    if num_tokens:
        _choose[num_tokens,](
            logits, logits.stride(0), bias, correction, experts, shares, scale,
            NUM_EXPERTS=num_experts, EXPERTS=triton.next_power_of_2(num_experts),
            NUM_CHOICES=num_choices, CHOICES=triton.next_power_of_2(num_choices),
            NUM_GROUPS=num_groups, GROUPS=triton.next_power_of_2(num_groups),
            NUM_CHOSEN=num_chosen, NUM_BEST=num_best, SCORE=score, IS_NORMALISED=is_normalised,
            num_warps=4,
        )  # fmt: skip
    return experts, shares


def sort_pairs(experts: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    """experts [T, C] int32, at most MOST_PAIRS of them, -> pairs [T, C] and stops [E], int32.

    An expert may be E: such pairs come last, after the last stop.
    """
    pairs = torch.empty(experts.shape, dtype=torch.int32, device=experts.device)
    stops = torch.empty(num_experts, dtype=torch.int32, device=experts.device)
    places = max(16, triton.next_power_of_2(experts.numel()))
    _sort[1,](
        experts.contiguous(), pairs, stops, experts.numel(), num_experts,
        PLACES=places, BINS=triton.next_power_of_2(num_experts + 1),
        num_warps=4 if places <= 512 else 8,
    )  # fmt: skip
    return pairs, stops


@triton.jit
def _best_of(values, is_left, places):
    """The first of the largest values that are left, and its index. NaN counts as the largest."""
    values = tl.where(values == values, values, float("inf"))
    best = tl.max(tl.where(is_left, values, float("-inf")), 0)
    return tl.min(tl.where(is_left & (values >= best), places, LAST), 0), best


@triton.jit
def _scores_of(z, inside, SCORE: tl.constexpr):
    if SCORE == "softmax":
        z = tl.where(inside, z, float("-inf"))
        weights = tl.exp(z - tl.max(z, 0))
        return weights / tl.sum(weights, 0)
    elif SCORE == "sigmoid":
        return 1.0 / (1.0 + tl.exp(-z))
    elif SCORE == "root of softplus":
        power = tl.exp(tl.minimum(z, SOFTPLUS_IS_LINEAR))
        wide = 1.0 + power  # log(1 + power), exactly where that is next to 1 as well
        soft = tl.where(wide == 1.0, power, tl.log(wide) * (power / tl.maximum(wide - 1.0, TINY)))
        return tl.sqrt(tl.where(z > SOFTPLUS_IS_LINEAR, z, soft))
    else:
        return z


@triton.jit
def _in_best_groups(
    compared, inside, expert, SIZE: tl.constexpr, NUM_GROUPS: tl.constexpr, GROUPS: tl.constexpr,
    NUM_CHOSEN: tl.constexpr, NUM_BEST: tl.constexpr,
):  # fmt: skip
    """Scores in which all experts outside the best groups are below all others."""
    group = tl.arange(0, GROUPS)
    of_groups = tl.full([GROUPS], float("-inf"), tl.float32)
    for number in tl.static_range(NUM_GROUPS):
        is_left = inside & (expert // SIZE == number)
        first, value = _best_of(compared, is_left, expert)
        if NUM_BEST == 2:
            _, second = _best_of(compared, is_left & (expert != first), expert)
            value += second
        of_groups = tl.where(group == number, value, of_groups)
    is_left = group < NUM_GROUPS
    is_chosen = expert < 0
    for _ in tl.static_range(NUM_CHOSEN):
        best, _value = _best_of(of_groups, is_left, group)
        is_left = is_left & (group != best)
        is_chosen = is_chosen | (expert // SIZE == best)
    return tl.where(is_chosen, compared, float("-inf"))


@triton.jit
def _choose(
    logits, stride, bias, correction, experts, shares, scale,
    NUM_EXPERTS: tl.constexpr, EXPERTS: tl.constexpr,
    NUM_CHOICES: tl.constexpr, CHOICES: tl.constexpr,
    NUM_GROUPS: tl.constexpr, GROUPS: tl.constexpr, NUM_CHOSEN: tl.constexpr,
    NUM_BEST: tl.constexpr, SCORE: tl.constexpr, IS_NORMALISED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, EXPERTS)
    inside = expert < NUM_EXPERTS
    z = tl.load(logits + token * stride + expert, mask=inside, other=0.0)
    if bias is not None:
        z += tl.load(bias + expert, mask=inside, other=0.0)
    scores = _scores_of(z, inside, SCORE)
    compared = scores
    if correction is not None:
        compared += tl.load(correction + expert, mask=inside, other=0.0)
    if NUM_GROUPS > 1:
        compared = _in_best_groups(
            compared, inside, expert, NUM_EXPERTS // NUM_GROUPS, NUM_GROUPS, GROUPS,
            NUM_CHOSEN, NUM_BEST,
        )  # fmt: skip
    choice = tl.arange(0, CHOICES)
    is_choice = choice < NUM_CHOICES
    chosen = choice * 0
    share = tl.zeros([CHOICES], tl.float32)
    is_left = inside
    for number in tl.static_range(NUM_CHOICES):
        best, _value = _best_of(compared, is_left, expert)
        is_left = is_left & (expert != best)
        chosen = tl.where(choice == number, best, chosen)
        score = tl.sum(tl.where(expert == best, scores, 0.0), 0)
        share = tl.where(choice == number, score, share)
    if SCORE == "softmax of chosen":
        share = tl.where(is_choice, share, float("-inf"))
        weights = tl.exp(share - tl.max(share, 0))
        share = weights / tl.sum(weights, 0)
    elif SCORE == "sigmoid of chosen":
        share = 1.0 / (1.0 + tl.exp(-share))
    if IS_NORMALISED:
        share = share / (tl.sum(tl.where(is_choice, share, 0.0), 0) + TINY)
    at = token * NUM_CHOICES + choice
    tl.store(experts + at, chosen, mask=is_choice)
    tl.store(shares + at, share * scale, mask=is_choice)


@triton.jit(do_not_specialize=["num_pairs"])
def _sort(experts, pairs, stops, num_pairs, num_experts, PLACES: tl.constexpr, BINS: tl.constexpr):
    pair = tl.arange(0, PLACES)
    inside = pair < num_pairs
    expert = tl.load(experts + pair, mask=inside, other=num_experts)
    keys = tl.where(inside, expert * PLACES + pair, LAST)  # each once, so any sort is stable
    tl.store(pairs + pair, tl.sort(keys) % PLACES, mask=inside)
    counts = tl.histogram(tl.minimum(expert, num_experts), BINS)
    number = tl.arange(0, BINS)
    tl.store(stops + number, tl.cumsum(counts, 0), mask=number < num_experts)
