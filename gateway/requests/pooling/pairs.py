"""Texts, and pairs of texts, as the prompts of a model that judges them.

    pair   the model's template for a query and a document         if it has one, else
           text_1 text_2, joined by the tokenizer as pairs are     or without anything between them

A prompt that is too long loses the end of its (second) text, never of the template: the score is
read after the template's last tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from baton.core.errors import InvalidRequest
from baton.gateway.requests.completion_request import Prompt
from baton.gateway.requests.gateway import Gateway
from baton.gateway.requests.pooling.pooled import MAX_INPUTS
from baton.gateway.requests.prompts import read_prompts
from baton.gateway.text.classifier import Classifier
from baton.gateway.text.tokenizer import CHARS_PER_TOKEN

Encode = Callable[[str], Awaitable[tuple[int, ...]]]
"""Tokenises a whole prompt around the text that may be shortened."""
TRUNCATE = "truncate_prompt_tokens"


def max_tokens_of(gateway: Gateway, asked: int | None) -> int | None:
    """The most tokens of a prompt; None: no truncation. Raises InvalidRequest."""
    if asked is None:
        return None
    if asked == 0 or asked < -1:
        raise InvalidRequest(
            f"{TRUNCATE} must be at least 1, or -1 for the context; got {asked}", field=TRUNCATE
        )
    return gateway.max_model_len if asked == -1 else asked


async def text_prompts(
    gateway: Gateway,
    given: str | list[Any] | None,
    field: str,
    *,
    adds_special: bool = True,
    max_tokens: int | None,
) -> tuple[Prompt, ...]:
    """The prompts of texts, or token ids, as `read_prompts` has them. Raises InvalidRequest."""
    prompts = await read_prompts(
        gateway,
        given,
        field,
        adds_special=adds_special,
        max_prompts=MAX_INPUTS,
        max_chars=None if max_tokens is None else CHARS_PER_TOKEN * max_tokens,
    )
    if max_tokens is None:
        return prompts
    return tuple([await _shortened(gateway, each, max_tokens, adds_special) for each in prompts])


async def _shortened(
    gateway: Gateway, prompt: Prompt, max_tokens: int, adds_special: bool
) -> Prompt:
    if prompt.text is None:
        return replace(prompt, tokens=prompt.tokens[:max_tokens])

    async def encode(text: str) -> tuple[int, ...]:
        return await gateway.encode(
            text, add_special_tokens=adds_special, prompt_field=prompt.field
        )

    return await _fitted(gateway, prompt.text, prompt.field, encode, max_tokens)


async def pair_prompts(
    gateway: Gateway,
    classifier: Classifier,
    pairs: Sequence[tuple[str, str, str]],
    *,
    instruction: str | None,
    max_tokens: int | None,
) -> tuple[Prompt, ...]:
    """`pairs`: each with the field name of its second text. Raises InvalidRequest."""
    template = classifier.pair_template
    if instruction is not None and template is None:
        raise InvalidRequest(
            f"instruction: `{gateway.model.name}` has no template of pairs with an instruction; "
            "put it into the query",
            field="instruction",
        )
    prompts = []
    for first, second, field in pairs:

        async def encode(second: str, first: str = first, field: str = field) -> tuple[int, ...]:
            if template is not None:
                text = template.render_pair(first, second, instruction)
                return await gateway.encode(text, add_special_tokens=False, prompt_field=field)
            if classifier.joins_pairs:
                return await gateway.encode(
                    first + second, add_special_tokens=True, prompt_field=field
                )
            return await gateway.encode(first, second, add_special_tokens=True, prompt_field=field)

        prompts.append(await _fitted(gateway, second, field, encode, max_tokens))
        await asyncio.sleep(0)  # many pairs take long: let other streams run in between
    return tuple(prompts)


async def _fitted(
    gateway: Gateway, text: str, field: str, encode: Encode, max_tokens: int | None
) -> Prompt:
    if max_tokens is None:
        return Prompt(tokens=await encode(text), field=field, text=text)
    text = text[: CHARS_PER_TOKEN * max_tokens]
    tokens = await encode(text)
    while len(tokens) > max_tokens:
        shorter = await gateway.beginning(text, max_tokens - len(tokens))
        text = shorter[: len(text) - 1]  # certainly shorter, whatever the tokenizer adds
        if not text:
            raise InvalidRequest(
                f"{TRUNCATE} is {max_tokens}, which leaves no tokens for {field}; raise it",
                field=TRUNCATE,
            )
        tokens = await encode(text)
    return Prompt(tokens=tokens, field=field, text=text)
