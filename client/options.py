"""Options of calls. Those not given take the server's default, named here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypedDict

from baton.client.sampling_options import SamplingOptions


class SchemaModel(Protocol):
    """A class that can describe itself, such as those of pydantic."""

    def model_json_schema(self) -> dict[str, Any]: ...


JsonSchema = Mapping[str, Any] | str | SchemaModel
"""A schema, its JSON text, or a class with `model_json_schema`."""

Prompt = str | Sequence[int]
"""Text, or token ids."""

ToolChoice = Literal["none", "auto", "required"] | Mapping[str, Any]
"""`{"name": ...}` or OpenAI's `{"type": "function", "function": {"name": ...}}`: call this one."""


class StructuredOptions(TypedDict, total=False):
    """Structured output; at most one of these."""

    json_schema: JsonSchema
    """The output is JSON of this schema."""
    json_object: bool
    """The output is some JSON object."""
    regex: str
    """The output matches all of it."""
    grammar: str
    """The output follows it; in Lark's notation."""
    choice: Sequence[str]
    """The output is one of these."""


class CacheControl(TypedDict, total=False):
    """A cache point: keep the prefix before it in the servers' caches. At most four per request."""

    type: Literal["ephemeral"]
    """ephemeral"""
    ttl: Literal["5m", "1h"]
    """5m; the time to live after each use."""


class RequestOptions(TypedDict, total=False):
    """Options of a whole request."""

    model: str
    """The only one served."""
    request_id: str
    """Drawn by the server."""
    cache_salt: str
    """Prompts under different salts never share cached KV."""
    cache_control: CacheControl
    """None; a cache point at the end of each prompt, or behind a chat's last message."""
    session_id: str
    """None; a key for requests of one conversation, so that its cached prefix is found again."""
    return_token_ids: bool
    """False"""
    return_progress: bool
    """False; report the prompt's progress in deltas before the first token."""
    add_special_tokens: bool
    """True for text; False for chats, whose templates write them out."""
    resumable: bool
    """The client's own: True. A broken stream is resumed without loss."""
    timeout_s: float
    """The client's own: 600. For the whole call, all attempts together."""


class EstimateOptions(SamplingOptions, RequestOptions, total=False):
    """Options of both prompts and conversations."""


class GenerateOptions(SamplingOptions, StructuredOptions, RequestOptions, total=False):
    echo: bool
    """False; give the prompt back before the output."""


class ChatOptions(SamplingOptions, StructuredOptions, RequestOptions, total=False):
    tools: Sequence[Mapping[str, Any]]
    """OpenAI's form, or its `function` part: name, description, parameters, strict."""
    tool_choice: ToolChoice
    """auto, if there are tools."""
    parallel_tool_calls: bool
    """True"""
    chat_template_kwargs: Mapping[str, Any]
    """Variables for the switches of the model's own template."""
    include_reasoning: bool
    """True"""


class EmbedOptions(TypedDict, total=False):
    model: str
    """The only one served."""
    pooling: Literal["mean", "last"]
    """What the model's authors say, else mean."""
    normalize: bool
    """True: vectors of length 1."""
    dimensions: int
    """All; else only the first dimensions, cut before normalising."""
    request_id: str
    """Drawn by the server."""
    cache_salt: str
    """Prompts under different salts never share cached KV."""
    priority: int
    """0; smaller comes first."""
    timeout_s: float
    """The client's own."""
