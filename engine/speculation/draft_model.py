"""A small draft model with the same tokenizer drafts for the large model, token by token (Leviathan
et al. 2023, https://arxiv.org/abs/2211.17192; by default a draft token is accepted if it equals the
token that the large model draws, see `verification.py`).

    known  a b c    drafted  x y z     KV of the draft model: a b c x y, in blocks of its own
    known  a b c x w                   x was right: only w is computed before it drafts again

The draft model samples with the same penalties and the same noise as the large model, so where both
agree they draw the same token. With the published acceptance rule it draws with noise of its own
and returns its distributions with the draft. It computes its KV of each prompt itself, wherever the
large model's KV comes from.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from baton.engine.batch.batch import Chunk
from baton.engine.blocks.block_pool import BlockPool
from baton.engine.passes.runner import Runner
from baton.engine.request.request import Phase, Request
from baton.engine.sampling.sampler import chances_of, draw_and_weigh
from baton.engine.sampling.sampling_plan import SamplingPlan
from baton.engine.speculation.drafter import NO_DRAFT, Draft

MIN_PROBABILITY = 0.1
"""A draft ends where its probability of being right as a whole falls below this."""


@dataclass(slots=True, eq=False)
class _Drafting:
    """The draft model's state of one request."""

    request: Request
    computed: list[int]
    """The tokens whose KV is in the draft model's cache."""
    num_sure: int
    """How many of `computed`, from the first on, are verified tokens of the request."""
    tokens: list[int] = field(default_factory=list)
    """The draft tokens made so far."""
    confidences: list[float] = field(default_factory=list)
    q: list[Tensor] = field(default_factory=list)
    """The distributions [V] that the draft tokens were drawn from, for the published rule."""
    probability: float = 1.0
    """Probability that the whole draft is right. Stays 1 for sampled requests, for which the draft
    model cannot tell."""

    def begin(self) -> None:
        """Begin a draft: drop rejected draft tokens from `computed`. The last known token is always
        computed again, for its logits."""
        known, computed, sure = self.request.tokens, self.computed, self.num_sure
        while sure < min(len(computed), len(known) - 1) and computed[sure] == known[sure]:
            sure += 1
        del computed[sure:]
        self.num_sure = sure
        self.tokens, self.confidences, self.q, self.probability = [], [], [], 1.0

    def done(self) -> Draft:
        """The finished draft. Its distributions are handed over and not kept, as they are large."""
        q, self.q = self.q, []
        return Draft(self.tokens, self.confidences, q)

    def next_tokens(self, most: int) -> list[int]:
        """The next at most `most` tokens that are not computed yet."""
        start, num_known = len(self.computed), len(self.request.tokens)
        if start < num_known:
            return self.request.tokens[start : start + most]
        return self.tokens[start - num_known :][:most]

    @property
    def num_pending(self) -> int:
        return len(self.request.tokens) + len(self.tokens) - len(self.computed)


class ModelDrafter:
    name = "draft"
    is_costly = True

    def __init__(
        self,
        runner: Runner,
        *,
        max_batch_tokens: int,
        eos_token_ids: Collection[int],
        has_own_noise: bool = False,
    ) -> None:
        """`runner` and its cache are used by this drafter alone; `eos_token_ids` are those of the
        large model.

        `has_own_noise`: draw with other noise than the large model, as the published rule requires.
        Drafts of requests that are not greedy then carry a distribution [V] per token.
        """
        self._runner = runner
        self._max_batch_tokens = max_batch_tokens
        self._eos_token_ids = eos_token_ids
        self._has_own_noise = has_own_noise
        self._pool = BlockPool(runner.cache)
        self._drafting: dict[Request, _Drafting] = {}

    def propose(self, requests: Sequence[Request], max_tokens: int) -> list[Draft]:
        for request in self._drafting.keys() - set(requests):
            if request.phase is not Phase.RUNNING:
                self.forget(request)  # preempted: its blocks are free for running requests
        drafting = [self._begin(request, max_tokens) for request in requests]
        going = [each for each in drafting if each is not None]
        for _ in range(max_tokens):
            if not going:
                break
            going = self._pass(going)
        return [NO_DRAFT if each is None else each.done() for each in drafting]

    def forget(self, request: Request) -> None:
        if self._drafting.pop(request, None) is not None:
            self._pool.release(request.holder)

    def _begin(self, request: Request, max_tokens: int) -> _Drafting | None:
        """The state of `request` with blocks for a draft; None if there are not enough blocks or
        its length would exceed what the draft model supports."""
        num_tokens = len(request.tokens) + max_tokens
        if num_tokens > self._runner.info.max_model_len:
            self.forget(request)  # for good: requests only grow
            return None
        drafting = self._drafting.get(request)
        if drafting is None:
            num_cached = self._pool.reserve(
                request.holder, request.tokens, request.salt, tenant=request.tenant
            )
            if num_cached is None:
                return None
            drafting = _Drafting(request, request.tokens[:num_cached], num_cached)
            self._drafting[request] = drafting
        if not self._pool.grow(request.holder, num_tokens):
            return None
        drafting.begin()
        self._pool.commit(request.holder, request.tokens, drafting.num_sure, request.salt)
        return drafting

    def _pass(self, going: Sequence[_Drafting]) -> list[_Drafting]:
        """Run one pass of the draft model, and draw a token for each request whose tokens are then
        all computed. Returns the drafts that go on."""
        budget = self._max_batch_tokens
        chunks: list[Chunk] = []
        drawing: list[_Drafting] = []
        for each in going:
            tokens = each.next_tokens(budget)
            if not tokens:
                break
            is_last = len(tokens) == each.num_pending
            chunks.append(
                Chunk(
                    tokens=tokens,
                    start=len(each.computed),
                    blocks=self._pool.table(each.request.holder),
                    num_outputs=int(is_last),
                )
            )
            each.computed.extend(tokens)
            budget -= len(tokens)
            if is_last:
                drawing.append(each)
        hidden = self._runner.forward(chunks)
        return self._draw(drawing, self._runner.logits(hidden)) if drawing else []

    @torch.inference_mode()
    def _draw(self, drawing: Sequence[_Drafting], logits: Tensor) -> list[_Drafting]:
        rows = [each.request.row.row_after(each.tokens) for each in drawing]
        kept = [number for number, row in enumerate(rows) if row is not None]
        if not kept:
            return []
        if len(kept) < len(rows):
            logits = logits[kept]
        plan = SamplingPlan(
            [row for row in rows if row is not None],
            logits.device,
            has_own_noise=self._has_own_noise,
        )
        (tokens, are_finite), said = draw_and_weigh(logits, plan, self._eos_token_ids)
        endings = [drawing[number].request.ending.tokens for number in kept]
        q = chances_of(logits, plan, self._eos_token_ids, endings) if self._has_own_noise else {}
        found = zip(kept, tokens.tolist(), said.tolist(), are_finite.tolist(), strict=True)
        going: list[_Drafting] = []
        for row, (number, token, confidence, is_finite) in enumerate(found):
            each = drawing[number]
            if not each.request.sampling.temperature:
                each.probability *= confidence
            if (
                not is_finite
                or each.probability < MIN_PROBABILITY
                or token in each.request.ending.tokens
            ):
                continue
            each.tokens.append(token)
            each.confidences.append(confidence)
            if row in q:
                each.q.append(q[row])
            going.append(each)
        return going
