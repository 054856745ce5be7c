"""One running choice: token updates in, text deltas out, usage at the end."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

from baton.core.messages import Receipt
from baton.gateway.requests.generations.generation import Generation
from baton.gateway.requests.generations.generation_run import GenerationRun
from baton.gateway.text.output_text import OutputText, TextDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    prompt_tokens: int
    cached_tokens: int
    """Tokens of the prompt found in a prefix cache."""
    cache_write_tokens: int = 0
    """Tokens of the prompt before a cache point and not cached until now."""
    output_tokens: int


class CompletionStream:
    """Enter it as a context; iterate for deltas, the last of which has a finish reason.

    Leaving the context stops the generation. Raises what `GenerationRun` does.
    """

    def __init__(self, run: GenerationRun, output: OutputText) -> None:
        self._run = run
        self._output = output

    @property
    def generation(self) -> Generation:
        return self._run.generation

    @property
    def usage(self) -> Usage:
        """Usage so far; final once closed."""
        receipt = self.receipt
        return Usage(
            prompt_tokens=len(self.generation.prompt),
            cached_tokens=receipt.cached_tokens,
            cache_write_tokens=receipt.cache_write_tokens,
            output_tokens=self.num_delivered,
        )

    @property
    def num_delivered(self) -> int:
        """Tokens given to the client; cheaper than `usage`, which builds a receipt."""
        return self._run.num_delivered

    @property
    def receipt(self) -> Receipt:
        """The receipt so far; final once closed."""
        return self._run.receipt

    async def __aenter__(self) -> CompletionStream:
        await self._run.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._run.__aexit__(kind, error, trace)

    def __aiter__(self) -> CompletionStream:
        return self

    async def __anext__(self) -> TextDelta:
        if self._run.is_closed or self._run.is_complete:
            await self.close()
            raise StopAsyncIteration
        delta = self._output.feed(await self._run.next())
        self._run.num_delivered += len(delta.tokens)
        self._run.is_complete = delta.finish_reason is not None
        return delta

    async def close(self) -> None:
        """Stop the generation if it still runs. Safe to repeat."""
        await self._run.close()
