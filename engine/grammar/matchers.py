"""The matchers of a service's requests: compiled beside its event loop, never on it.

    begin(grammar) --a thread--> at the grammar's start --behind(output)--> ready for the engine

A hostile grammar may take seconds. The threads are these alone, and few: grammars wait for each
other, nothing else waits for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

from baton.core.errors import BatonError, InvalidRequest, Unavailable
from baton.core.sampling import Grammar
from baton.engine.grammar.grammar import GrammarCompiler, TokenMatcher

log = logging.getLogger(__name__)

NUM_THREADS = 2

OnFailure = Callable[[BatonError], None]


class PendingMatcher:
    """One request's, on its way. Belongs to the event loop until the engine has the matcher.

    Cancelling who waits for it cancels it, too.
    """

    def __init__(self, threads: Executor, compile_grammar: Callable[[], TokenMatcher]) -> None:
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._compiled = self._loop.run_in_executor(threads, compile_grammar)
        self._num_accepted = 0

    async def is_compiled(self) -> None:
        """Raises InvalidRequest for a grammar that cannot be followed."""
        await self._compiled

    async def behind(self, output: Sequence[int]) -> TokenMatcher:
        """The matcher behind `output`, which only grows. Raises InvalidRequest."""
        matcher = await self._compiled
        tokens = output[self._num_accepted :]
        if tokens:
            await self._loop.run_in_executor(self._threads, matcher.accept, tokens)
        self._num_accepted = len(output)
        return matcher

    def cancel(self) -> None:
        """Nobody wants it any more. What runs already runs to its end, unheard."""
        self._compiled.cancel()

    def on_failure(self, tell: OnFailure) -> None:
        def judge(compiled: asyncio.Future[TokenMatcher]) -> None:
            error = None if compiled.cancelled() else compiled.exception()
            if isinstance(error, BatonError):
                tell(error)
            elif error is not None:
                log.error("a grammar could not be compiled", exc_info=error)
                tell(Unavailable(f"{type(error).__name__}: {error}"))

        self._compiled.add_done_callback(judge)


class Matchers:
    """`compiler` is the engine's; None refuses every grammar."""

    def __init__(self, compiler: GrammarCompiler | None) -> None:
        self._compiler = compiler
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="baton-grammar")

    def begin(self, grammar: Grammar) -> PendingMatcher:
        return PendingMatcher(self._threads, lambda: self._compile(grammar))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _compile(self, grammar: Grammar) -> TokenMatcher:
        if self._compiler is None:
            raise InvalidRequest(
                "the model served here cannot follow a grammar; leave response_format out",
                field="response_format",
            )
        return self._compiler.compile(grammar)
