"""The bodies of OpenAI's requests, with the extras that vLLM made common.

Fields Baton does not know are ignored, and a header names them. Fields it knows and need not act on
are accepted; fields that would change the answer in ways it cannot are refused unless they ask for
nothing (requests/unsupported.py). The types say which are which, to readers of the OpenAPI document
as well.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from baton.core.errors import InvalidRequest
from baton.gateway.chat.functions import Function
from baton.gateway.chat.message_schema import Message
from baton.gateway.chat.tool_definitions import Tool
from baton.gateway.grammars.structured_output import (
    OutputRule,
    ResponseFormat,
    StructuredOutputs,
    output_rule,
    rule_of_kinds,
)
from baton.gateway.requests.cache_control import CacheControl
from baton.gateway.requests.options import CommonOptions
from baton.gateway.requests.unsupported import Ignored, Refused


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    """A last chunk tells the usage."""
    continuous_usage_stats: bool | None = None
    """vLLM's: usage so far in every chunk. Counts only together with `include_usage`."""
    include_obfuscation: Ignored = None


class RequestBody(CommonOptions, kw_only=True, forbid_unknown_fields=True):
    model: str | None = None
    """The one that is served, which is also the default."""
    stream: bool | None = None
    """Answer in server-sent events, as tokens come."""
    stream_options: StreamOptions | None = None
    """What a stream tells besides."""

    response_format: ResponseFormat | None = None
    """The output must be JSON, or fit a JSON schema."""

    structured_outputs: StructuredOutputs | None = None
    """vLLM's: a schema, an expression, choices or a grammar that the output must fit."""
    add_special_tokens: bool | None = None
    """vLLM's: of the tokenizer, such as `<s>`. True by default, but for chats."""
    cache_salt: str | None = None
    """vLLM's: cached KV is shared only among requests of the same salt."""
    cache_control: CacheControl | None = None
    """Anthropic's: keep the prompt in the prefix cache; of a chat, up to its last message."""
    return_token_ids: bool | None = None
    """vLLM's: tell the ids of prompt and output, too."""

    prompt_cache_key: str | None = None
    """Requests of one conversation, which are computed where what they begin with is cached. The
    header `x-session-id` goes before it."""
    receipt: bool | None = None
    """Baton's: add a `baton` object to the answer: where the request ran and what it cost."""
    return_progress: bool | None = None
    """llama.cpp's: until its first token a stream tells how far its prompt is."""
    resumable: bool | None = None
    """Baton's: keep the stream for a while when the connection breaks; its events carry ids."""

    metadata: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None
    safety_identifier: Ignored = None
    service_tier: Ignored = None
    store: Ignored = None
    user: Ignored = None

    skip_special_tokens: bool | None = None
    """vLLM's: false shows special tokens in the text. True by default."""
    include_stop_str_in_output: bool | None = None
    """vLLM's: the text holds the stop string that ended it. False by default."""
    truncate_prompt_tokens: Annotated[
        int | None,
        Meta(
            description="vLLM's: keep the last so many tokens of the prompt; -1: those that fit.",
            extra_json_schema={"minimum": -1},
        ),
    ] = None
    return_tokens_as_token_ids: bool | None = None
    """vLLM's: logprobs name tokens `token_id:7` in place of their text."""
    request_id: str | None = None
    """vLLM's: what the answer's id is made of. The header `x-request-id` is told as it came."""
    guided_choice: list[str] | None = None
    """vLLM's older `structured_outputs.choice`."""
    guided_grammar: str | None = None
    """vLLM's older `structured_outputs.grammar`."""
    guided_json: dict[str, Any] | str | bool | None = None
    """vLLM's older `structured_outputs.json`."""
    guided_regex: str | None = None
    """vLLM's older `structured_outputs.regex`."""

    def rule(self) -> OutputRule | None:
        """What the output must be. Raises InvalidRequest."""
        guided = [
            kind
            for kind in ("json", "regex", "choice", "grammar")
            if getattr(self, f"guided_{kind}") is not None
        ]
        if not guided:
            return output_rule(self.response_format, self.structured_outputs)
        field = f"guided_{guided[0]}"
        others = [f"guided_{kind}" for kind in guided[1:]]
        others += ["response_format"] if self.response_format is not None else []
        others += ["structured_outputs"] if self.structured_outputs is not None else []
        if others:
            message = f"{field} and {others[0]} exclude each other; leave one out"
            raise InvalidRequest(message, field=field)
        wanted = StructuredOutputs(**{guided[0]: getattr(self, field)})
        try:
            return replace(rule_of_kinds(wanted, field="guided"), field=field)
        except InvalidRequest as error:
            raise InvalidRequest(error.message.replace("guided.", "guided_"), field=field) from None


class CompletionBody(RequestBody, kw_only=True, forbid_unknown_fields=True):
    prompt: str | list[Any] | None = None
    """A text, a list of token ids, or a list of either."""
    logprobs: int | None = None
    """Log-probabilities of the output's tokens, with so many alternatives; at most 20."""
    echo: bool | None = None
    """Begin the answer with the prompt."""

    suffix: Refused = None


class ChatBody(RequestBody, kw_only=True, forbid_unknown_fields=True):
    messages: list[Message]
    """The conversation so far."""
    max_completion_tokens: int | None = None
    """The newer name of `max_tokens`, which gives way to it."""
    logprobs: bool | None = None
    """Log-probabilities of the output's tokens."""
    top_logprobs: int | None = None
    """With so many alternatives; at most 20."""
    tools: list[Tool] | None = None
    """Functions that the model may call."""
    tool_choice: str | dict[str, Any] | None = None
    """`none`, `auto`, `required`, or the function that must be called."""
    parallel_tool_calls: bool | None = None
    """False: one call an answer. True by default."""
    functions: list[Function] | None = None
    """Deprecated by OpenAI for `tools`; answers then have `function_call`."""
    function_call: str | dict[str, Any] | None = None
    """`none`, `auto`, or the one of `functions` that must be called."""
    reasoning_effort: str | None = None
    """A variable of the chat template; not all have it."""

    chat_template_kwargs: dict[str, Any] | None = None
    """vLLM's: variables for the switches of the chat template."""
    chat_template: str | None = None
    """vLLM's: the name of another of the model's chat templates; a template itself where the
    operator lets requests bring theirs."""
    add_generation_prompt: bool | None = None
    """vLLM's: end the prompt where an answer begins. True by default."""
    continue_final_message: bool | None = None
    """vLLM's: go on with the last message in place of answering it."""
    include_reasoning: bool | None = None
    """vLLM's: false leaves the reasoning out of the answer. True by default."""

    enable_thinking: bool | None = None
    """Qwen's and GLM's: a variable of the chat template; not all have it."""
    thinking: bool | dict[str, Any] | None = None
    """DeepSeek's and Anthropic's: the same; of an object its `type` counts."""
    reasoning: dict[str, Any] | None = None
    """OpenRouter's: `effort`, `enabled`, and `exclude` for an answer without reasoning."""
    verbosity: str | None = None
    """A variable of the chat template; not all have it."""
    echo: bool | None = None
    """Of completions; refused unless false."""
    prediction: Any = None
    """What the output may be like. Accepted, and not acted upon."""

    audio: Refused = None
    modalities: Refused = None
    moderation: Refused = None
    web_search_options: Refused = None

    @property
    def hides_reasoning(self) -> bool:
        return self.include_reasoning is False or bool((self.reasoning or {}).get("exclude"))
