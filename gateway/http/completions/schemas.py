"""The bodies of OpenAI's requests, with the extras that vLLM made common.

Unknown fields are ignored, and a header names them. Known fields without effect are accepted.
Fields that would change the answer in ways that Baton cannot are refused, unless their value asks
for nothing (requests/unsupported.py). The field types show which is which, also in the OpenAPI
document.
"""

from __future__ import annotations

from typing import Any

import msgspec

from baton.gateway.chat.functions import Function
from baton.gateway.chat.message_schema import Message
from baton.gateway.chat.tool_definitions import Tool
from baton.gateway.grammars.structured_output import OutputRule, ResponseFormat, output_rule
from baton.gateway.http.generation_body import GenerationBody
from baton.gateway.requests.unsupported import Ignored, Label, Refused


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    """A last chunk reports the usage."""
    continuous_usage_stats: bool | None = None
    """vLLM's: usage so far in every chunk. Counts only together with `include_usage`."""
    include_obfuscation: Ignored = None


class RequestBody(GenerationBody, kw_only=True, forbid_unknown_fields=True):
    stream_options: StreamOptions | None = None
    """What a stream reports besides."""
    max_completion_tokens: int | None = None
    """The newer name of `max_tokens`, which it overrides."""
    response_format: ResponseFormat | None = None
    """The output must be JSON, or fit a JSON schema."""
    return_progress: bool | None = None
    """llama.cpp's: until its first token a stream reports how far its prompt is."""
    return_tokens_as_token_ids: bool | None = None
    """vLLM's: logprobs name tokens `token_id:7` in place of their text."""

    metadata: Label = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None
    safety_identifier: Label = None
    service_tier: Ignored = None
    store: Ignored = None
    user: Label = None

    @property
    def max_name(self) -> str:
        """The name of the field that limits the output."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    def rule(self) -> OutputRule | None:
        """The rule for the output. Raises InvalidRequest."""
        return self.output_rule_with(output_rule(self.response_format, None), "response_format")


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
    logprobs: bool | None = None
    """Log-probabilities of the output's tokens."""
    top_logprobs: int | None = None
    """Alternatives for each token's logprobs; at most 20."""
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
    """A field of completions; refused unless false."""
    documents: list[dict[str, Any]] | None = None
    """vLLM's: a variable of the chat template; refused where it has none."""
    prediction: Ignored = None

    audio: Refused = None
    modalities: Refused = None
    moderation: Refused = None
    web_search_options: Refused = None

    @property
    def hides_reasoning(self) -> bool:
        return self.include_reasoning is False or bool((self.reasoning or {}).get("exclude"))
