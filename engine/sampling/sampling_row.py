"""What the sampler knows of one row of logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from baton.core.messages import SamplingParams
from baton.engine.grammar.grammar import TokenMatcher
from baton.engine.sampling.token_counts import TokenCounts


@dataclass(slots=True, eq=False)
class SamplingRow:
    """One row of logits. The token to be drawn has position `len(prompt) + len(output)`.

    A request has one for all of its life; `prompt` and `output` are its own lists, and grow.
    """

    params: SamplingParams
    prompt: Sequence[int]
    output: Sequence[int]
    matcher: TokenMatcher | None = None
    """The matcher of the grammar in `params`, behind `output`."""
    is_plain: bool = field(init=False)
    """Its best token is what it draws, and nobody asks for more."""
    _counts: TokenCounts | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        params = self.params
        self.is_plain = not (
            params.temperature > 0
            or params.num_logprobs is not None
            or params.logit_bias
            or self.has_penalties
            or self.has_rules
        )

    @property
    def has_penalties(self) -> bool:
        params = self.params
        return (
            params.repetition_penalty != 1
            or params.presence_penalty != 0
            or params.frequency_penalty != 0
        )

    @property
    def has_rules(self) -> bool:
        """Whether some tokens may be forbidden now or later: see
        `baton.engine.sampling.allowed_tokens`."""
        params = self.params
        return bool(
            self.matcher is not None
            or params.allowed_token_ids
            or params.bad_words
            or len(self.output) < params.min_tokens
        )

    def counts(self) -> TokenCounts:
        """The counts of the tokens it has now."""
        if self._counts is None:
            self._counts = TokenCounts(self.prompt)
        self._counts.follow(self.output)
        return self._counts
