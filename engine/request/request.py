"""A request as one engine sees it: tokens known, and how many of them are computed.

    known tokens = prompt + output        computed: their KV is in the cache
    |<-------- num_computed -------->|<-- num_pending -->|

While prefilling many tokens are pending, while decoding exactly one: the token sampled last.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from baton.core.kv_pool import Holder, HolderKind
from baton.core.messages import CachePoint, Pooling
from baton.core.sampling import FinishReason, SamplingParams, TokenLogprob
from baton.engine.grammar.grammar import TokenMatcher
from baton.engine.request.pooling import Embedding
from baton.engine.request.prompt_logprobs import PromptLogprobs
from baton.engine.sampling.sampling_row import SamplingRow


class Phase(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Ending(NamedTuple):
    """The conditions under which a request may end."""

    tokens: frozenset[int]
    """Stop tokens."""
    num_tokens: int
    """Number of known tokens at which it ends at the latest."""


class Request:
    """Mutable; owned by the engine's thread from `Engine.add` or `Engine.adopt` until it finished.

    `output` is what earlier attempts have sampled already. `max_new_tokens` limits the tokens
    sampled here, on top of the limits in `sampling`.
    """

    def __init__(  # noqa: PLR0913, PLR0915 - one parameter, or statement, a property
        self,
        request_id: str,
        prompt: Sequence[int],
        *,
        output: Sequence[int] = (),
        sampling: SamplingParams,
        salt: bytes = b"",
        adapter: str = "",
        tenant: str = "",
        cache_points: Sequence[CachePoint] = (),
        priority: int = 0,
        matcher: TokenMatcher | None = None,
        pooling: Pooling | None = None,
        max_new_tokens: int | None = None,
    ) -> None:
        self.request_id = request_id
        self.holder = Holder(HolderKind.REQUEST, request_id)
        self.prompt = list(prompt)
        self.output = list(output)
        self.tokens = self.prompt + self.output
        """All known tokens; `append` and `extend` keep it and `output` in step."""
        self.given_output = len(self.output)
        """Tokens of `output` that were not sampled here."""
        self.sampling = sampling
        self.salt = salt
        self.adapter = adapter
        """The name of the adapter that it asks for; empty: the base model."""
        self.adapter_number = 0
        """See `RowAdapters`; set when an engine takes the request."""
        self.tenant = tenant
        """The tenant that its blocks count for."""
        self.cache_points = sorted(cache_points, key=lambda point: point.num_tokens)
        """The cache points still to be pinned, nearest first."""
        self.num_pinned = 0
        """Tokens that its cache points keep in the prefix cache."""
        self.cache_notes: list[str] = []
        """Notes for the client about cache points that could not be kept in full."""
        self.priority = priority
        """Smaller values come first."""
        self.matcher = matcher
        """The matcher of the grammar in `sampling`, after all of `output`."""
        self.embedding: Embedding | None = None
        """Set if the embedding is the answer and nothing is sampled."""
        if pooling is not None:
            self.embedding = Embedding(pooling, sampling.allowed_token_ids)
        self.prompt_logprobs: PromptLogprobs | None = None
        """Set while prompt logprobs are wanted: until the first token, and never for a request that
        continues from another replica."""
        if sampling.num_prompt_logprobs is not None and not output and pooling is None:
            self.prompt_logprobs = PromptLogprobs(self.prompt, sampling.num_prompt_logprobs)
        self.max_new_tokens = max_new_tokens
        self.ending = Ending(frozenset(), 0)
        """Stop tokens and output limit, by the limits of the engine that has the request."""

        self.phase = Phase.WAITING
        self.open_slot = 0
        """Where the request's open blocks are kept while it runs: the index of its slot."""
        self.num_computed = 0
        self.num_cached = 0
        """Tokens found in the prefix cache when the request was first admitted."""
        self.num_looked_up = 0
        """Tokens looked up in the prefix cache at that time."""
        self.num_run = 0
        """Tokens run through the model, those computed again after a preemption included."""
        self.num_drafted = 0
        """Drafted tokens run through the model, not counted in `num_run`."""
        self.num_accepted = 0
        """Drafted tokens that are in the output, and in `num_run`."""
        self.num_draft_missing = 0
        """Known tokens whose hidden states the drafter was not given."""
        self.num_preemptions = 0
        self.num_overtaken = 0
        """Requests admitted before it, out of turn, since it came to the head of the queue."""
        self.arrival = 0
        """Position in the order in which this engine's requests arrived."""

        self.arrived_at: float | None = None
        """Seconds on the engine's clock, like the next two."""
        self.scheduled_at: float | None = None
        self.first_token_at: float | None = None

    def __repr__(self) -> str:
        return f"Request({self.request_id!r}, {self.phase}, {self.num_computed}/{len(self.tokens)})"

    @cached_property
    def row(self) -> SamplingRow:
        """The request's row for the sampler. Its grammar must be compiled."""
        return SamplingRow(self.sampling, self.prompt, self.output, self.matcher)

    @property
    def num_pending(self) -> int:
        """Tokens known but not yet computed: 1 while decoding, more while prefilling."""
        return len(self.tokens) - self.num_computed

    @property
    def num_sampled(self) -> int:
        """Output tokens sampled here."""
        return len(self.output) - self.given_output

    @property
    def awaits_token(self) -> bool:
        """Whether all known tokens are computed and the next is to be sampled."""
        return not self.num_pending and self.embedding is None

    @property
    def has_reached_own_limit(self) -> bool:
        """Whether `max_new_tokens` is used up: the request ends here, but may continue on another
        replica."""
        return self.max_new_tokens is not None and self.num_sampled >= self.max_new_tokens

    @property
    def needs_every_token(self) -> bool:
        """Whether all hidden states are read, so that none may come from the prefix cache."""
        return self.prompt_logprobs is not None or (
            self.embedding is not None and self.embedding.needs_every_token
        )

    @property
    def is_prompt_finite(self) -> bool:
        return self.prompt_logprobs is None or self.prompt_logprobs.are_finite

    def take_prompt_logprobs(self) -> tuple[TokenLogprob, ...]:
        """Return and forget the prompt logprobs, with the first token; empty if not asked for."""
        if self.prompt_logprobs is None:
            return ()
        logprobs, self.prompt_logprobs = self.prompt_logprobs.take(), None
        return logprobs

    def append(self, token: int) -> None:
        self.output.append(token)
        self.tokens.append(token)

    def extend(self, tokens: Sequence[int]) -> None:
        self.output.extend(tokens)
        self.tokens.extend(tokens)

    def continues_after(self, tokens: Sequence[int]) -> bool:
        """Whether the request surely continues after the next `tokens`."""
        stops, num_tokens = self.ending
        return len(self.tokens) + len(tokens) < num_tokens and stops.isdisjoint(tokens)


def ending_of(request: Request, *, eos_token_ids: Collection[int], max_model_len: int) -> Ending:
    """Stop tokens and length at which `finish_reason`, or the request's own limit, must be looked
    at."""
    sampling, num_given = request.sampling, len(request.prompt)
    limits = [max_model_len, num_given + sampling.max_tokens]
    if request.max_new_tokens is not None:
        limits.append(num_given + request.given_output + request.max_new_tokens)
    return Ending(frozenset((*eos_token_ids, *sampling.stop_token_ids)), min(limits))


def finish_reason(
    output: Sequence[int],
    num_tokens: int,
    sampling: SamplingParams,
    *,
    eos_token_ids: Collection[int],
    max_model_len: int,
) -> FinishReason | None:
    """Why a request with `num_tokens` known tokens, `output` the last of them, is over; or None.

    With a grammar an end-of-sequence token is the end in any case: nothing may follow it.
    """
    is_eos = bool(output) and output[-1] in eos_token_ids
    if is_eos and sampling.grammar is not None:
        return FinishReason.STOP
    if output and len(output) >= sampling.min_tokens:
        is_end = is_eos and not sampling.ignore_eos
        if is_end or output[-1] in sampling.stop_token_ids:
            return FinishReason.STOP
    if len(output) >= sampling.max_tokens or num_tokens >= max_model_len:
        return FinishReason.LENGTH
    return None
