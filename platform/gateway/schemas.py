"""The bodies of OpenAI's requests, with the extras that vLLM made common.

Fields Baton does not know are refused by name. Fields it knows and need not act on are accepted;
fields that would change the answer in ways it cannot are refused unless they ask for nothing
(`NEUTRAL`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from baton.core.errors import InvalidRequest


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: Any = None


class RequestBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None

    # vLLM's
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    add_special_tokens: bool | None = None
    cache_salt: str | None = None
    return_token_ids: bool | None = None

    # Baton's
    receipt: bool | None = None
    """Add a `baton` object to the response: where the request ran and what it cost."""

    # accepted
    metadata: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    store: Any = None
    user: Any = None

    # refused unless neutral
    best_of: Any = None
    logit_bias: Any = None
    n: Any = None


class CompletionBody(RequestBody, kw_only=True, forbid_unknown_fields=True):
    prompt: str | list[Any] | None = None
    logprobs: int | None = None

    # refused unless neutral
    echo: Any = None
    suffix: Any = None


class TextPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    text: str | None = None
    image_url: Any = None
    input_audio: Any = None
    file: Any = None
    refusal: Any = None
    prompt_cache_breakpoint: Any = None


class Message(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    role: str
    content: str | list[TextPart] | None = None
    name: str | None = None

    # refused unless neutral
    annotations: Any = None
    audio: Any = None
    function_call: Any = None
    refusal: Any = None
    tool_call_id: Any = None
    tool_calls: Any = None


class ChatBody(RequestBody, kw_only=True, forbid_unknown_fields=True):
    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables for the switches of the model's own chat template."""

    # accepted
    parallel_tool_calls: Any = None

    # refused unless neutral
    audio: Any = None
    function_call: Any = None
    functions: Any = None
    modalities: Any = None
    moderation: Any = None
    prediction: Any = None
    reasoning_effort: Any = None
    response_format: Any = None
    tool_choice: Any = None
    tools: Any = None
    verbosity: Any = None
    web_search_options: Any = None


NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (None, 1),
    "logit_bias": (None, {}),
    "n": (None, 1),
    "echo": (None, False),
    "suffix": (None, ""),
    "audio": (None,),
    "function_call": (None, "none", "auto"),
    "functions": (None, []),
    "modalities": (None, ["text"]),
    "moderation": (None,),
    "prediction": (None,),
    "reasoning_effort": (None, "none"),
    "response_format": (None, {"type": "text"}),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "verbosity": (None, "medium"),
    "web_search_options": (None,),
    "annotations": (None, []),
    "refusal": (None,),
    "tool_call_id": (None,),
    "tool_calls": (None, []),
}


def refuse_unsupported(body: msgspec.Struct, path: str = "") -> None:
    """Raises InvalidRequest for the first field that asks for what Baton cannot do yet."""
    for name in body.__struct_fields__:
        neutral = NEUTRAL.get(name)
        if neutral is None:
            continue
        value = getattr(body, name)
        if not any(value == other and type(value) is type(other) for other in neutral):
            raise InvalidRequest(
                f"{path}{name} is not supported yet; leave it out", field=path + name
            )
