"""Probes an endpoint before the load: accepted fields, token ids, tokens per word.

fields   all optional ones at once; refused ones are left out from then on
ids      /v1/completions with a few token ids, and whether it counts them as they are
words    two prompts of known words: tokens a word, and what the server adds by itself
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import numpy as np
from tokenizers import Tokenizer

from baton.core.errors import InvalidConfig, Unavailable
from baton.platform.load_generator.dialect import Api, Dialect
from baton.platform.load_generator.outcome import Ending, Exchange, LoadTarget
from baton.platform.load_generator.prompts import (
    COMMON_WORDS,
    IdWriter,
    PromptWriter,
    WordWriter,
    plain_ids,
    single_token_words,
)

HIGHEST_IDS = (30_000, 8_000, 2_000, 500)
"""Vocabulary sizes to try, in order, if no tokenizer says the number of ids."""
FIRST_PLAIN_ID = 256
"""First id behind special tokens and bytes."""
NUM_IDS = 8
NUM_WORDS = 200
"""The most words in the calibration prompts."""
TIMES_ALL_WORDS = (1, 3)
TRIES_WHEN_BUSY = 5
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    dialect: Dialect
    writer: PromptWriter
    sizing: str
    """How exact the prompt lengths are."""
    is_exact: bool
    notes: tuple[str, ...] = ()


class Probe:
    """Raises InvalidConfig or Unavailable, with the server's message, if no request succeeds."""

    def __init__(
        self, target: LoadTarget, dialect: Dialect, *, seed: int, tokenizer: Tokenizer | None = None
    ) -> None:
        self._target = target
        self._dialect = dialect
        self._seed = seed
        self._tokenizer = tokenizer
        self._notes: list[str] = []

    async def run(self) -> Probed:
        answered = await self._agree_on_fields()
        counts_tokens = answered.usage.prompt_tokens is not None
        if not counts_tokens:
            self._notes.append("the server reports no usage: output tokens are counted by events")
        writer: PromptWriter | None = None
        if self._dialect.api is Api.COMPLETIONS:
            writer = await self._try_ids()
        sizing, is_exact = "exact: token ids", True
        if writer is None:
            writer, sizing, is_exact = await self._fit_words(counts_tokens)
        return Probed(
            dialect=self._dialect,
            writer=writer,
            sizing=sizing,
            is_exact=is_exact,
            notes=tuple(self._notes),
        )

    async def _agree_on_fields(self) -> Exchange:
        while True:
            exchange = await self._ask("Hello")
            if exchange.ending is Ending.COMPLETED:
                return exchange
            if exchange.ending is not Ending.REFUSED or not self._adapt_to(exchange.detail):
                raise self._hopeless(exchange)

    def _adapt_to(self, said: str) -> bool:
        """Drop the field that the server named, else the next optional one."""
        if "max_completion_tokens" in said and self._dialect.max_tokens_field == "max_tokens":
            self._dialect = replace(self._dialect, max_tokens_field="max_completion_tokens")
            return True
        sent = self._dialect.optional_fields
        if not sent or said[:3] not in ("400", "422"):
            return False
        refused = [name for name in sent if name in said] or [sent[0]]
        kept = tuple(name for name in sent if name not in refused)
        self._dialect = replace(self._dialect, optional_fields=kept)
        self._notes.extend(f"without {name}: the server refuses it" for name in refused)
        return True

    def _hopeless(self, exchange: Exchange) -> Exception:
        said = f"{self._dialect.api.path}: {exchange.detail or exchange.ending}"
        match exchange.detail[:3]:
            case "401" | "403":
                return InvalidConfig(f"{said}; give an --api-key")
            case "404":
                other = "chat" if self._dialect.api is Api.COMPLETIONS else "completions"
                return InvalidConfig(f"{said}; is it another --model, or --endpoint {other}?")
            case _ if exchange.ending is Ending.REFUSED:
                return InvalidConfig(said)
            case _:
                return Unavailable(f"{said}; is this a server of OpenAI's API, and is it up?")

    async def _try_ids(self) -> IdWriter | None:
        for ids in self._candidates():
            exchange = await self._ask([*ids[: NUM_IDS - 1].tolist(), int(ids[-1])])
            if exchange.ending is Ending.COMPLETED:
                counted = exchange.usage.prompt_tokens
                return IdWriter(ids, self._seed) if counted in (None, NUM_IDS) else None
        self._notes.append("the server takes no token ids: prompts are words")
        return None

    def _candidates(self) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
        if self._tokenizer is not None:
            return [plain_ids(self._tokenizer)]
        return [np.arange(min(FIRST_PLAIN_ID, top // 2), top) for top in HIGHEST_IDS]

    async def _fit_words(self, counts_tokens: bool) -> tuple[WordWriter, str, bool]:
        own = [] if self._tokenizer is None else single_token_words(self._tokenizer)
        words = np.array(own or COMMON_WORDS.split(), dtype=object)
        writer = WordWriter(words, self._seed)
        if not counts_tokens:
            return writer, "rough: words, and the server does not say how many tokens", False
        known = words[:NUM_WORDS].tolist()
        few, many = (times * len(known) for times in TIMES_ALL_WORDS)
        num_few, num_many = [await self._count(known * times) for times in TIMES_ALL_WORDS]
        tokens_per_word = 1.0 if own else (num_many - num_few) / (many - few)
        overhead = round(num_few - few * tokens_per_word)
        fitted = WordWriter(words, self._seed, max(tokens_per_word, 0.1), overhead)
        by = "the tokenizer" if own else f"usage: {tokens_per_word:.3g} tokens a word"
        return fitted, f"words, sized by {by}, and {overhead} that the server adds", bool(own)

    async def _count(self, words: list[str]) -> int:
        exchange = await self._ask(" " + " ".join(words))
        if exchange.ending is not Ending.COMPLETED or exchange.usage.prompt_tokens is None:
            raise self._hopeless(exchange)
        return exchange.usage.prompt_tokens

    async def _ask(self, prompt: list[int] | str) -> Exchange:
        """Send a small request, retrying while the server is busy."""
        for _ in range(TRIES_WHEN_BUSY):
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    exchange = await self._target.ask(self._dialect.body(prompt, 2))
            except TimeoutError:
                raise Unavailable(
                    f"{self._dialect.api.path}: no answer to a small request in {TIMEOUT_S:g} s"
                ) from None
            if exchange.ending is not Ending.REJECTED:
                break
            await asyncio.sleep(1.0 if exchange.retry_after_s is None else exchange.retry_after_s)
        return exchange
