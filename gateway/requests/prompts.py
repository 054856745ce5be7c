"""The prompts of a request: one or several, as text or as token ids.

"text"   ["text", "text"]   [1, 2, 3]   [[1, 2], [3]]
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from baton.core.errors import InvalidRequest
from baton.core.messages import CachePoint
from baton.gateway.requests.cache_control import CacheControl, ttl_s
from baton.gateway.requests.completion_request import Prompt
from baton.gateway.requests.gateway import Gateway
from baton.gateway.requests.options import SamplingOptions


async def read_prompts(
    gateway: Gateway,
    given: str | list[Any] | None,
    field: str,
    *,
    adds_special: bool,
    max_prompts: int,
    max_chars: int | None = None,
) -> tuple[Prompt, ...]:
    """Read texts or token ids as prompts; texts up to `max_chars` characters.

    Raises InvalidRequest, naming what is wrong below `field`.
    """
    if given is None:
        raise InvalidRequest(f"{field} is missing", field=field)
    if not given:
        raise InvalidRequest(f"{field} is empty; it needs at least one token", field=field)
    if isinstance(given, str):
        return (await _of_text(gateway, given[:max_chars], field, adds_special),)
    if not isinstance(given[0], str | list):
        return (Prompt(tokens=_token_ids(gateway, given, field), field=field),)
    if len(given) > max_prompts:
        message = f"{field} has {len(given)} items; at most {max_prompts} can be"
        raise InvalidRequest(f"{message}: send several requests", field=field)
    return await _several(gateway, given, field, adds_special=adds_special, max_chars=max_chars)


def with_cache_point(
    prompts: tuple[Prompt, ...], control: CacheControl | None
) -> tuple[Prompt, ...]:
    """The prompts, each with a cache point at its end. Raises InvalidRequest."""
    if control is None:
        return prompts
    seconds = ttl_s(control, "cache_control")
    return tuple(
        replace(prompt, cache_points=(CachePoint(len(prompt.tokens), seconds),))
        for prompt in prompts
    )


def truncated(
    prompt: Prompt, num_tokens: int | None, gateway: Gateway, options: SamplingOptions
) -> Prompt:
    """The prompt's last `num_tokens` tokens; for -1, as many as leave room for the output.

    Raises InvalidRequest.
    """
    field = "truncate_prompt_tokens"
    if num_tokens is None:
        return prompt
    if num_tokens == 0 or num_tokens < -1:
        message = f"{field} must be at least 1, or -1 for what fits; got {num_tokens}"
        raise InvalidRequest(message, field=field)
    if num_tokens == -1:
        num_tokens = max(1, gateway.max_model_len - (options.max_tokens or 1))
    if len(prompt.tokens) <= num_tokens:
        return prompt
    if prompt.cache_points:
        message = f"{field} and cache_control exclude each other here; leave one out"
        raise InvalidRequest(message, field=field)
    return replace(prompt, tokens=prompt.tokens[-num_tokens:], text=None)


async def _several(
    gateway: Gateway, given: list[Any], field: str, *, adds_special: bool, max_chars: int | None
) -> tuple[Prompt, ...]:
    kind = type(given[0])
    prompts: list[Prompt] = []
    for index, item in enumerate(given):
        path = f"{field}[{index}]"
        if type(item) is not kind:
            word = "a string" if kind is str else "a list of token ids"
            raise InvalidRequest(f"{path} must be {word}, as {field}[0] is", field=path)
        if not item:
            raise InvalidRequest(f"{path} is empty; it needs at least one token", field=path)
        if isinstance(item, str):
            prompts.append(await _of_text(gateway, item[:max_chars], path, adds_special))
        else:
            prompts.append(Prompt(tokens=_token_ids(gateway, item, path), field=path))
        await asyncio.sleep(0)  # many texts take long: let other streams run in between
    return tuple(prompts)


async def _of_text(gateway: Gateway, text: str, field: str, adds_special: bool) -> Prompt:
    tokens = await gateway.encode(text, add_special_tokens=adds_special, prompt_field=field)
    return Prompt(tokens=tokens, field=field, text=text)


def _token_ids(gateway: Gateway, given: list[Any], field: str) -> tuple[int, ...]:
    for index, token in enumerate(given[: gateway.max_model_len]):  # more: refused for the number
        if type(token) is not int:
            path = f"{field}[{index}]"
            raise InvalidRequest(f"{path} must be a token id", field=path)
    return tuple(given)
