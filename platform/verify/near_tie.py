"""How far two tokens may lie from each other and still change places between two runs that add the
same numbers in another order: the bound on the top-2 gap.

Where operators of ours compute, on a CPU, a row depends on that row alone, and so it is on a GPU
with `deterministic`: the bound is 0. Elsewhere a library chooses by the number of rows how it
splits a sum, so each rounding may fall otherwise. With u the unit roundoff, half a unit in the last
place,

    a number kept in the model's dtype      error relative to it, at random:  u / sqrt 3
    a sum of K products in float32          sqrt K * 2^-24 / sqrt 3           (Higham & Mary 2019)
    L layers, each with c of both           d^2 = (L c + 25) (u^2 + K 2^-48) / 3

for a logit, where roundings fall independently and a residual network with norms passes a relative
error on as it is; 25 is for the best logits, some 5 deviations from the others' mean, being rounded
themselves. If logits spread by s (their standard deviation over the vocabulary), one is off by d s,
and a gap of two of them, between two runs, by sqrt 2 * sqrt 2 times as much:

    bound = gain * 4 standard deviations = 24 d s

with a gain of 3, for not every network is so well behaved. It is a bound in probability: that of
the worst case grows with K instead of sqrt K (Higham 2002, 3.1) and would say nothing. It does not
hold for sums that are not kept in float32. The greedy token may differ between batches of other
shapes only where the two best logits are nearer than this; behind it stand two different texts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from baton.engine.batch.batch import Chunk, ignore_layer, make_batch
from baton.engine.checkpoint.load import LoadedModel
from baton.engine.layers.linear import Linear
from baton.engine.memory.kv_cache import KvCache
from baton.kernels.cpu import operators

NUM_ROUNDINGS = 12
"""The roundings of a layer: two norms, queries, keys and values, their rotation, probabilities,
what attention gives, its product, gate and up, what is between them, down, twice the residual."""
LOGIT_ROUNDINGS = 25
NUM_DEVIATIONS = 4.0
GAIN = 3.0
UNIT_ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
SAMPLE_LEN = 48


def gap_bound(dtype: str, num_layers: int, sum_len: int, spread: float) -> float:
    """Nats, for logits of that standard deviation over the vocabulary and sums of `sum_len`."""
    squared = UNIT_ROUNDOFF[dtype] ** 2 + sum_len * UNIT_ROUNDOFF["float32"] ** 2
    error = math.sqrt((num_layers * NUM_ROUNDINGS + LOGIT_ROUNDINGS) * squared / 3)
    return GAIN * NUM_DEVIATIONS * 2 * error * spread


def gap_bound_of(loaded: LoadedModel, device: str) -> float:
    """The gap bound of a model, by its logits on some tokens. 0 where sums have one order.

    They have not where long chunks of prompts are computed in another form than short ones.
    """
    has_one_order = operators.runs(
        torch.empty(0, dtype=getattr(torch, loaded.info.dtype), device=device)
    )
    if loaded.is_deterministic or (has_one_order and loaded.model.latent is None):
        return 0.0
    return gap_bound(
        loaded.info.dtype, loaded.info.num_layers, longest_sum(loaded), spread_of(loaded, device)
    )


def longest_sum(loaded: LoadedModel) -> int:
    """Products of one sum in a matrix product."""
    linears = [module for module in loaded.model.modules() if isinstance(module, Linear)]
    return max(linear.weight.shape[1] for linear in linears)


@torch.inference_mode()
def spread_of(loaded: LoadedModel, device: str) -> float:
    """The largest standard deviation of the logits of a token, over a few tokens."""
    layout = loaded.own(loaded.info.layout(SAMPLE_LEN))
    cache = KvCache(layout, 1, device)
    batch = make_batch([_sample(loaded.info.vocab_size)], SAMPLE_LEN, device)
    hidden = loaded.model(batch, cache.layers, ignore_layer)
    return float(loaded.model.logits(hidden).std(-1).max())


def _sample(vocab_size: int) -> Chunk:
    tokens: Sequence[int] = [(7919 * place + 3) % vocab_size for place in range(SAMPLE_LEN)]
    return Chunk(tokens, 0, (0,), SAMPLE_LEN)
