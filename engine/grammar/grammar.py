"""Which tokens a grammar allows next.

    Grammar --compile--> TokenMatcher      sampled tokens go in, a mask of allowed tokens comes out

The state of a matcher depends only on its grammar and the tokens it has accepted. A preempted
request keeps its matcher; on another replica the grammar is compiled again, and the new matcher
accepts the request's output so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from baton.core.sampling import Grammar


class TokenMatcher(Protocol):
    """The state of one request's grammar. Belongs to the engine's thread once the request is in the
    engine.

    Errors are raised by `accept` only, which is called for one request: `fill_mask` is called for a
    whole batch and never fails.
    """

    def fill_mask(self, mask: Tensor) -> None:
        """Write the tokens that may come next into `mask`: int32 [ceil(V / 32)] on the CPU.

        Bit t % 32 of word t // 32 is set if token t is allowed. At least one token is. Where the
        output may end, the end-of-sequence tokens are allowed; after one of them only they are.
        """

    def num_allowed(self, tokens: Sequence[int]) -> int:
        """How many of `tokens`, from the first on, are allowed one after the other. The matcher's
        state does not change."""

    def look_ahead(self, tokens: Sequence[int]) -> list[Tensor]:
        """The masks, as `fill_mask` writes them, after the first of `tokens`, after the first two
        and so on, up to the first token that is not allowed. The matcher's state does not change.
        """

    def accept(self, tokens: Sequence[int]) -> None:
        """Advance the state by `tokens`.

        Raises InvalidRequest if the grammar does not allow them, or if computing the tokens that
        may follow them is too costly. The matcher must not be used after that.
        """


class GrammarCompiler(Protocol):
    def compile(self, grammar: Grammar) -> TokenMatcher:
        """Compile a grammar. May take a second, so call it neither on the event loop nor on the
        engine's thread.

        Raises InvalidRequest, with the reason, for a grammar that cannot be followed.
        """
