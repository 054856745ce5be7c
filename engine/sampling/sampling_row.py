"""One row of logits, with its sampling state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from baton.core.sampling import SamplingParams
from baton.engine.grammar.grammar import TokenMatcher
from baton.engine.sampling.token_counts import TokenCounts


@dataclass(slots=True, eq=False)
class SamplingRow:
    """One row of logits. The token to be drawn has position `len(prompt) + len(output)`.

    A request has one row for all of its life. `prompt` and `output` are the request's own lists;
    `output` grows.
    """

    params: SamplingParams
    prompt: Sequence[int]
    output: Sequence[int]
    matcher: TokenMatcher | None = None
    """The matcher of the grammar in `params`, after `output`; with a `mask`, still before it."""
    mask: Tensor | None = None
    """The tokens that the grammar allows after `output`, if known without the matcher."""
    is_plain: bool = field(init=False)
    """Whether the row takes its best token, without logprobs."""
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

    @property
    def depends_on_output(self) -> bool:
        """Whether the draw depends on the tokens before it other than through the logits."""
        return self.has_penalties or self.has_rules

    def rows_after(self, drafted: Sequence[int]) -> list[SamplingRow]:
        """This row, and the rows after the first of `drafted`, after the first two and so on, as
        far as its grammar allows. This row is not changed."""
        if self.is_plain:  # a row that takes its best token does not depend on the output
            return [self] * (1 + len(drafted))
        masks: Sequence[Tensor | None] = [None] * len(drafted)
        if self.matcher is not None:
            masks = self.matcher.look_ahead(drafted)
        return [self, *(self._after(drafted[:i], mask) for i, mask in enumerate(masks, 1))]

    def row_after(self, drafted: Sequence[int]) -> SamplingRow | None:
        """The row after all of `drafted`; None if its grammar does not allow them."""
        if self.is_plain or not drafted:
            return self
        if self.matcher is None:
            return self._after(drafted, None)
        masks = self.matcher.look_ahead(drafted)
        return self._after(drafted, masks[-1]) if len(masks) == len(drafted) else None

    def _after(self, drafted: Sequence[int], mask: Tensor | None) -> SamplingRow:
        output = [*self.output, *drafted]
        row = SamplingRow(self.params, self.prompt, output, self.matcher, mask)
        if row.has_penalties:
            row._counts = self.counts().with_tokens(drafted)
        return row

    def fill_mask(self, mask: Tensor) -> None:
        """Fill the mask with the tokens that its grammar allows, if it has one; see
        `TokenMatcher.fill_mask`."""
        if self.mask is not None:
            mask.copy_(self.mask)
        elif self.matcher is not None:
            self.matcher.fill_mask(mask)

    def counts(self) -> TokenCounts:
        """The counts of its current tokens."""
        if self._counts is None:
            self._counts = TokenCounts(self.prompt)
        self._counts.follow(self.output)
        return self._counts
