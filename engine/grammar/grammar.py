"""Which tokens a grammar allows next.

    Grammar --compile--> TokenMatcher      what was sampled goes in, what may be sampled comes out

A matcher is a function of its grammar and the tokens it has accepted: a request that is preempted
keeps it, and one that goes on elsewhere compiles the grammar again and accepts its output so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from baton.core.sampling import Grammar


class TokenMatcher(Protocol):
    """Belongs to one request, and to the engine's thread once that request is in the engine.

    Whatever can go wrong does so in `accept`, where one request is at fault: `fill_mask` is called
    for a whole batch and never fails.
    """

    def fill_mask(self, mask: Tensor) -> None:
        """Write the tokens that may come next into `mask`: int32 [ceil(V / 32)] on the CPU.

        Bit t % 32 of word t // 32 is set if token t is allowed. At least one always is; where the
        sentence may end, the end-of-sequence tokens are among them, and behind one nothing else is.
        """

    def num_allowed(self, tokens: Sequence[int]) -> int:
        """How many of `tokens` may come, one behind the other. The matcher stays where it is."""

    def look_ahead(self, tokens: Sequence[int]) -> list[Tensor]:
        """The masks behind the first of `tokens`, the first two and so on, as `fill_mask` writes
        them, up to the first token that may not come. The matcher stays where it is.
        """

    def accept(self, tokens: Sequence[int]) -> None:
        """Go on behind `tokens`.

        Raises InvalidRequest if the grammar does not allow them, or if what may come behind them is
        too costly to know; the matcher is of no use then.
        """


class GrammarCompiler(Protocol):
    def compile(self, grammar: Grammar) -> TokenMatcher:
        """May take a second: call it off the event loop and off the engine's thread.

        Raises InvalidRequest, with what is wrong, for a grammar that cannot be followed.
        """
