"""Compiles the grammars of a service's requests in threads, off its event loop.

    begin(grammar) --a thread--> at the grammar's start --after(output)--> ready for the engine

A hostile grammar may take seconds. A few threads are reserved for grammars, so that only other
grammars wait for it.
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
    """One request's matcher while it is being compiled. Belongs to the event loop until the engine
    has the matcher.

    Cancelling a task that waits for it cancels the compilation, too.
    """

    def __init__(self, threads: Executor, compile_grammar: Callable[[], TokenMatcher]) -> None:
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._compiled = self._loop.run_in_executor(threads, compile_grammar)
        self._num_accepted = 0

    async def is_compiled(self) -> None:
        """Wait until the grammar is compiled. Raises InvalidRequest if it cannot be followed."""
        await self._compiled

    async def after(self, output: Sequence[int]) -> TokenMatcher:
        """The matcher after it has accepted `output`. A later call must pass the same tokens and
        perhaps more. Raises InvalidRequest if the grammar does not allow them."""
        matcher = await self._compiled
        tokens = output[self._num_accepted :]
        if tokens:
            await self._loop.run_in_executor(self._threads, matcher.accept, tokens)
        self._num_accepted = len(output)
        return matcher

    def cancel(self) -> None:
        """Cancel the compilation. If it runs already, it runs to its end and its result is
        dropped."""
        self._compiled.cancel()

    def on_failure(self, tell: OnFailure) -> None:
        """Call `tell` with the error if the compilation fails; on the event loop."""

        def judge(compiled: asyncio.Future[TokenMatcher]) -> None:
            error = None if compiled.cancelled() else compiled.exception()
            if isinstance(error, BatonError):
                tell(error)
            elif error is not None:
                log.error("a grammar could not be compiled", exc_info=error)
                tell(Unavailable(f"{type(error).__name__}: {error}"))

        self._compiled.add_done_callback(judge)


class Matchers:
    """The compiling threads of one service. `compiler` is the engine's; with None every grammar is
    refused."""

    def __init__(self, compiler: GrammarCompiler | None) -> None:
        self._compiler = compiler
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="baton-grammar")

    def begin(self, grammar: Grammar) -> PendingMatcher:
        """Start to compile a grammar. Must be called on the event loop."""
        return PendingMatcher(self._threads, lambda: self._compile(grammar))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _compile(self, grammar: Grammar) -> TokenMatcher:
        if self._compiler is None:
            raise InvalidRequest(
                "the model served here does not support grammars; leave response_format out",
                field="response_format",
            )
        return self._compiler.compile(grammar)
