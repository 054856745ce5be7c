"""All choices of one request: several prompts, and several completions of each.

    prompt 0   choice 0  ---o-o-------------->    The first token may come from a prefill replica,
                              +- choice 1 ----->    the second shows that the decode replica has
                              +- choice 2 -->       the prompt's KV: the others start there, if
    prompt 1   choice 3  --o-o---->                 there is room, and share its blocks.

All choices form one stream; each delta has the index of its choice. The first choice that fails
ends all with its error; closing the stream stops all.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from baton.core.messages import Receipt
from baton.core.sampling import FinishReason, TokenLogprob
from baton.gateway.requests.generations.completion_stream import CompletionStream, Usage
from baton.gateway.requests.generations.generation import Generation
from baton.gateway.text.echo import EchoedPrompt
from baton.gateway.text.output_text import TextDelta, merge


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """An addition to one choice. After the last one the choice's receipt is final."""

    index: int
    delta: TextDelta
    is_first: bool = True


class PromptChoices:
    """The choices of one prompt, as they are drawn."""

    def __init__(
        self,
        streams: Sequence[CompletionStream],
        *,
        echo: EchoedPrompt | None = None,
        is_prompt_only: bool = False,
    ) -> None:
        """`is_prompt_only`: drop the output; only the prompt's echo and logprobs are wanted."""
        self.streams = streams
        self._echo = echo
        self._is_prompt_only = is_prompt_only
        self._is_cached = asyncio.Event()
        self._prompt_logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def usage(self) -> Usage:
        first = self.streams[0].usage
        num_output = sum(stream.num_delivered for stream in self.streams)
        return replace(first, output_tokens=0 if self._is_prompt_only else num_output)

    async def draw(self, number: int) -> AsyncGenerator[TextDelta]:
        """Run one choice; all but the first wait until the prompt is cached."""
        if number:
            await self._is_cached.wait()
        is_first = True
        async with self.streams[number] as stream:
            async for delta in stream:
                if number == 0:
                    self._note_progress(stream, delta)
                elif is_first:
                    delta = replace(delta, prompt_logprobs=self._prompt_logprobs)
                if delta.finish_reason is not None:
                    await stream.close()  # completes the receipt
                yield self._shown(delta, is_first=is_first)
                is_first = False

    def _note_progress(self, stream: CompletionStream, delta: TextDelta) -> None:
        self._prompt_logprobs = self._prompt_logprobs or delta.prompt_logprobs
        if stream.num_delivered > 1 or delta.finish_reason is not None:
            self._is_cached.set()

    def _shown(self, delta: TextDelta, *, is_first: bool) -> TextDelta:
        if self._is_prompt_only:
            delta = _without_output(delta)
        return delta if self._echo is None else delta.after(self._echo, is_first=is_first)


class Completion:
    """A running request. `deltas` runs it; usage and receipts are final once that has ended."""

    def __init__(
        self, prompts: Sequence[PromptChoices], *, num_returned: int, keeps_logprobs: bool = True
    ) -> None:
        """Return the best `num_returned` choices of each prompt."""
        self._prompts = prompts
        self._num_returned = num_returned
        self._keeps_logprobs = keeps_logprobs
        self._num_drawn = len(prompts[0].streams)
        self._shown = [stream for prompt in prompts for stream in prompt.streams]

    @property
    def num_choices(self) -> int:
        return len(self._prompts) * self._num_returned

    @property
    def choices_per_prompt(self) -> int:
        """Choice i belongs to prompt i // choices_per_prompt."""
        return self._num_returned

    @property
    def first_generation(self) -> Generation:
        """The generation of the first prompt's first choice."""
        return self._shown[0].generation

    @property
    def time_left_s(self) -> float | None:
        return self.first_generation.time_left_s

    @property
    def usage(self) -> Usage:
        """Usage: each prompt counts once; all generated tokens count, shown or not."""
        usages = [prompt.usage for prompt in self._prompts]
        return Usage(
            prompt_tokens=sum(usage.prompt_tokens for usage in usages),
            cached_tokens=sum(usage.cached_tokens for usage in usages),
            cache_write_tokens=sum(usage.cache_write_tokens for usage in usages),
            output_tokens=sum(usage.output_tokens for usage in usages),
        )

    @property
    def receipts(self) -> list[Receipt]:
        """The receipts by choice. A choice's receipt is final from its last delta on."""
        return [stream.receipt for stream in self._shown]

    def deltas(self) -> AsyncGenerator[ChoiceDelta]:
        """Close it (`aclosing`) to stop what still runs.

        Iterating raises Overloaded, Unavailable, DeadlineExceeded or InvalidRequest.
        """
        return self._drawn() if self._num_returned == self._num_drawn else self._best()

    async def whole(self) -> list[ChoiceDelta]:
        """Run to the end: one delta for each choice, in order."""
        async with aclosing(self.deltas()) as deltas:
            parts = await _by_index(deltas, self.num_choices)
        return [ChoiceDelta(index, merge(part)) for index, part in enumerate(parts)]

    def _drawn(self) -> AsyncGenerator[ChoiceDelta]:
        return self._one() if len(self._shown) == 1 else self._merged()

    async def _one(self) -> AsyncGenerator[ChoiceDelta]:
        is_first = True
        async with aclosing(self._prompts[0].draw(0)) as deltas:
            async for delta in deltas:
                yield ChoiceDelta(0, delta, is_first)
                is_first = False

    async def _merged(self) -> AsyncGenerator[ChoiceDelta]:
        """Merge the choices through a bounded queue, so that they do not run ahead of a slow
        client."""
        queue: asyncio.Queue[ChoiceDelta | Exception | None] = asyncio.Queue(len(self._shown))
        tasks = [asyncio.create_task(self._feed(queue, index)) for index in range(len(self._shown))]
        try:
            num_open = len(tasks)
            while num_open:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    num_open -= 1
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _feed(self, queue: asyncio.Queue[ChoiceDelta | Exception | None], index: int) -> None:
        prompt, number = divmod(index, self._num_drawn)
        is_first = True
        try:
            async with aclosing(self._prompts[prompt].draw(number)) as deltas:
                async for delta in deltas:
                    await queue.put(ChoiceDelta(index, delta, is_first))
                    is_first = False
        except Exception as error:
            await queue.put(error)
        else:
            await queue.put(None)

    async def _best(self) -> AsyncGenerator[ChoiceDelta]:
        """Run all choices, then yield the best of each prompt, best first."""
        async with aclosing(self._drawn()) as deltas:
            drawn = [merge(parts) for parts in await _by_index(deltas, len(self._shown))]
        chosen: list[int] = []
        for start in range(0, len(drawn), self._num_drawn):
            order = sorted(
                range(start, start + self._num_drawn),
                key=lambda index: mean_logprob(drawn[index]),
                reverse=True,  # a stable sort
            )
            chosen.extend(order[: self._num_returned])
        self._shown = [self._shown[index] for index in chosen]
        for index, source in enumerate(chosen):
            delta = drawn[source]
            yield ChoiceDelta(index, delta if self._keeps_logprobs else replace(delta, logprobs=()))


async def _by_index(deltas: AsyncIterator[ChoiceDelta], num: int) -> list[list[TextDelta]]:
    parts: list[list[TextDelta]] = [[] for _ in range(num)]
    async for part in deltas:
        parts[part.index].append(part.delta)
    return parts


def mean_logprob(delta: TextDelta) -> float:
    """Mean logprob of the sampled tokens; minus infinity without any."""
    if not delta.logprobs:
        return -math.inf
    return sum(entry.logprob for entry in delta.logprobs) / len(delta.logprobs)


def _without_output(delta: TextDelta) -> TextDelta:
    return TextDelta(
        text="",
        tokens=(),
        prompt_logprobs=delta.prompt_logprobs,
        finish_reason=None if delta.finish_reason is None else FinishReason.LENGTH,
    )
