"""The body of POST /v1/responses: a conversation, or the next turn of a stored one."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from baton.core.errors import InvalidRequest
from baton.gateway.chat.functions import CustomTool, Function, InputFormat
from baton.gateway.http.completions.schemas import StreamOptions
from baton.gateway.http.generation_body import GenerationBody
from baton.gateway.requests.unsupported import Ignored, Label, Refused


class ResponsesTool(msgspec.Struct, kw_only=True):
    """A function or a custom tool. Tools of other types have other fields, and are refused by their
    type."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: InputFormat | UnsetType | None = UNSET
    """The rule for the text that a custom tool is given. Any text by default."""

    def shown(self) -> dict[str, Any]:
        """The tool as the answer repeats it."""
        fields = msgspec.to_builtins(self)
        if self.type == "custom":
            return {name: value for name, value in fields.items() if value is not None}
        return dict(fields)

    def function(self, path: str) -> Function:
        """Raises InvalidRequest."""
        if self.type not in ("function", "custom"):
            message = (
                f"{path}.type is {self.type!r}; known are function and custom. Tools that run at "
                "OpenAI's servers can be left out of what is read (gateway.hosted_tools)"
            )
            raise InvalidRequest(message, field=f"{path}.type")
        if self.name is None:
            raise InvalidRequest(f"{path}.name is missing", field=f"{path}.name")
        if self.type == "custom":
            tool = CustomTool(
                name=self.name, description=self.description, format=self.format or None
            )
            return tool.function(path)
        return Function(
            name=self.name,
            description=self.description,
            parameters=self.parameters,
            strict=self.strict,
        )


class TextFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str = "text"
    """text, json_object or json_schema."""
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: TextFormat | None = None
    verbosity: str | None = None
    """A variable of the chat template; not all have it."""


class ReasoningConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    effort: str | None = None
    """A variable of the chat template; not all have it."""
    summary: str | None = None
    """Accepted: reasoning is given as it is."""
    enabled: bool | None = None
    """OpenRouter's: as `enable_thinking`."""
    exclude: bool | None = None
    """OpenRouter's: true leaves the reasoning out of the answer."""
    max_tokens: int | None = None
    """OpenRouter's: a variable of the chat template, `thinking_budget`; not all have it."""
    generate_summary: Ignored = None
    context: Ignored = None


class ResponsesBody(GenerationBody, kw_only=True, forbid_unknown_fields=True):
    input: str | list[dict[str, Any]]
    """Text, or items: messages, calls of functions and their outputs, references to kept items."""
    instructions: str | None = None
    """A system message before the rest. Those of an earlier response do not hold any more."""
    previous_response_id: str | None = None
    """The response that this goes on from: before `input` stands all that it was given, and what it
    answered."""
    store: bool | None = None
    """Keep the response, for `previous_response_id` and `GET /v1/responses/{response_id}`. True by
    default, where anything is kept (gateway.storage)."""
    max_output_tokens: int | None = None
    """Reasoning and calls included."""
    top_logprobs: int | None = None
    """Alternatives a token; at most 20."""
    include: list[str] | None = None
    """`message.output_text.logprobs` asks for logprobs."""
    text: TextConfig | None = None
    """What the text must be: JSON, or fit a JSON schema."""
    reasoning: ReasoningConfig | None = None
    tools: list[ResponsesTool] | None = None
    """Functions that the model may call."""
    tool_choice: str | dict[str, Any] | None = None
    """`none`, `auto`, `required`, or the function that must be called."""
    parallel_tool_calls: bool | None = None
    """False: one call an answer. True by default."""
    stream_options: StreamOptions | None = None
    """Usage is always reported, with the last event."""
    metadata: dict[str, str] | None = None
    """Given back in the answer."""
    user: str | None = None
    """Given back in the answer."""

    background: bool | None = None
    """Answer at once, and run without the client, which asks for the response later."""

    chat_template_kwargs: dict[str, Any] | None = None
    """vLLM's: variables for the switches of the model's own chat template."""
    add_generation_prompt: bool | None = None
    """vLLM's: end the prompt where an answer begins. True by default."""
    continue_final_message: bool | None = None
    """vLLM's: go on with the last message in place of answering it."""
    documents: list[dict[str, Any]] | None = None
    """vLLM's: a variable of the chat template; refused where it has none."""
    enable_thinking: bool | None = None
    """Qwen's and GLM's: a variable of the chat template; not all have it."""
    thinking: bool | dict[str, Any] | None = None
    """DeepSeek's and Anthropic's: the same; of an object its `type` and `budget_tokens` count."""
    include_reasoning: bool | None = None
    """vLLM's: false leaves the reasoning out of the answer. True by default."""
    return_tokens_as_token_ids: bool | None = None
    """vLLM's: logprobs name tokens `token_id:7` in place of their text."""

    max_tool_calls: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None
    safety_identifier: Label = None
    service_tier: Ignored = None

    best_of: Refused = None
    context_management: Refused = None
    conversation: Refused = None
    max_tokens: Refused = None
    moderation: Refused = None
    n: Refused = None
    prompt: Refused = None
    prompt_logprobs: Refused = None
    truncation: Refused = None

    @property
    def hides_reasoning(self) -> bool:
        excluded = self.reasoning is not None and self.reasoning.exclude
        return self.include_reasoning is False or bool(excluded)
