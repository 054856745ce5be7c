"""The body of /v1/messages and of /v1/messages/count_tokens: Anthropic's fields, and vLLM's
sampling options.

Requests are stateless and only the model runs here, so features of Anthropic's servers are refused.
"""

from __future__ import annotations

from typing import Any

import msgspec

from baton.core.errors import InvalidRequest
from baton.gateway.chat.functions import Function
from baton.gateway.http.generation_body import GenerationBody
from baton.gateway.http.remedies import refuse_fields
from baton.gateway.requests.cache_control import CacheControl
from baton.gateway.requests.unsupported import (
    Ignored,
    Label,
    Refused,
    Returned,
)


class ContentBlock(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`text`; of the user `tool_result`; of the assistant `tool_use` and `thinking`."""

    type: str
    text: str | None = None
    cache_control: CacheControl | None = None
    """Keep what is before the end of this block in the prefix cache."""
    id: str | None = None
    """The id of a `tool_use`."""
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    """The call that a `tool_result` answers."""
    content: str | list[ContentBlock] | None = None
    """What the tool said."""
    is_error: bool | None = None
    """True: the model sees that the tool failed."""
    thinking: str | None = None
    """Reasoning of an earlier answer; most templates leave it out of the prompt."""

    caller: Returned = None
    citations: Returned = None
    context: Returned = None
    data: Returned = None
    signature: Returned = None
    source: Returned = None
    title: Returned = None
    toolset_name: Returned = None


class InputMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    role: str
    """`user` or `assistant`; `system` for instructions that come later."""
    content: str | list[ContentBlock]


class ToolDefinition(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str | None = None
    """`custom`, which is the default."""
    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    """A JSON schema."""
    strict: bool | None = None
    """Calls fit the schema even if the model need not make one."""
    cache_control: CacheControl | None = None
    """Keep the tools in the prefix cache."""

    allowed_callers: Ignored = None
    defer_loading: Ignored = None
    eager_input_streaming: Ignored = None
    input_examples: Ignored = None

    def function(self, path: str) -> Function:
        """Raises InvalidRequest."""
        if self.type not in (None, "custom"):
            raise InvalidRequest(
                f"{path}.type {self.type!r} is a tool that only Anthropic's servers run; define a "
                "tool with name, description and input_schema, or have the operator ignore such "
                "tools (gateway.hosted_tools)",
                field=f"{path}.type",
            )
        if self.input_schema is None:
            field = f"{path}.input_schema"
            raise InvalidRequest(f"{field} is missing", field=field)
        return Function(
            name=self.name,
            description=self.description,
            parameters=self.input_schema,
            strict=self.strict,
        )


class ToolChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    """`auto`, `any`, `tool` or `none`."""
    name: str | None = None
    """The name of the tool that must be called."""
    disable_parallel_tool_use: bool | None = None
    """True: one call an answer."""


class Thinking(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    """`enabled`, `adaptive` or `disabled`."""
    budget_tokens: int | None = None
    """A variable of the chat template, `thinking_budget`; not all have it."""
    display: str | None = None
    """`omitted` leaves the text out of the answer's thinking; `summarized` gives all of it."""


class JsonFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    """`json_schema`."""
    schema: dict[str, Any] | bool | None = None


class OutputConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    effort: str | None = None
    """A variable of the chat template, `reasoning_effort`; not all have it."""
    format: JsonFormat | None = None
    """The text must fit a JSON schema."""
    task_budget: Ignored = None


class MessagesBody(GenerationBody, kw_only=True, forbid_unknown_fields=True):
    messages: list[InputMessage]
    """The conversation so far. If the assistant has the last word, the answer goes on with it."""
    system: str | list[ContentBlock] | None = None
    """Instructions before the rest: a text, or blocks of text."""
    tools: list[ToolDefinition] | None = None
    """Functions that the model may call."""
    tool_choice: ToolChoice | None = None
    """Whether the model may, must or must not call a tool. `auto` by default."""
    thinking: Thinking | None = None
    """The switch of the chat template for reasoning; off by default. Not all have it."""
    output_config: OutputConfig | None = None
    """How much effort to make, and what the text must be."""
    output_format: JsonFormat | None = None
    """The older place of `output_config.format`."""
    chat_template_kwargs: dict[str, Any] | None = None
    """vLLM's: variables for the switches of the model's own chat template."""
    stop_sequences: list[str] | None = None
    """Strings that end the output."""
    enable_thinking: bool | None = None
    """Qwen's and GLM's: as `thinking`, which goes before it."""
    documents: list[dict[str, Any]] | None = None
    """vLLM's: a variable of the chat template; refused where it has none."""
    context_management: dict[str, Any] | None = None
    """Refused, but for what clears thinking: which of it is shown is the chat template's choice."""

    betas: Ignored = None
    billing_policy: Ignored = None
    diagnostics: Ignored = None
    fallback_credit_token: Ignored = None
    fallbacks: Ignored = None
    inference_geo: Ignored = None
    metadata: Label = None
    service_tier: Ignored = None
    speed: Ignored = None
    user_profile_id: Ignored = None
    workspace_id: Ignored = None

    best_of: Refused = None
    compaction: Refused = None
    container: Refused = None
    function_call: Refused = None
    functions: Refused = None
    logprobs: Refused = None
    mcp_servers: Refused = None
    n: Refused = None
    prefill: Refused = None
    prompt_logprobs: Refused = None
    response_format: Refused = None
    stop: Refused = None
    thread: Refused = None
    top_logprobs: Refused = None


CLEARS_THINKING = "clear_thinking_20251015"


def refuse_foreign(body: MessagesBody) -> None:
    """Raises InvalidRequest for what needs Anthropic's servers, or has another name here."""
    refuse_fields(body)
    edits = (body.context_management or {}).get("edits") or []
    for index, edit in enumerate(edits if isinstance(edits, list) else [edits]):
        if not isinstance(edit, dict) or edit.get("type") != CLEARS_THINKING:
            field = f"context_management.edits[{index}]"
            raise InvalidRequest(
                f"{field} is not supported: the gateway does not edit the context; leave it out, "
                "and send fewer messages",
                field=field,
            )
