"""What a caller may ask for, by name. What is left out takes the server's default, named here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypedDict


class SchemaModel(Protocol):
    """A class that can describe itself, such as those of pydantic."""

    def model_json_schema(self) -> dict[str, Any]: ...


JsonSchema = Mapping[str, Any] | str | SchemaModel
"""A schema, its JSON text, or a class with `model_json_schema`."""

Prompt = str | Sequence[int]
"""Text, or token ids."""

ToolChoice = Literal["none", "auto", "required"] | Mapping[str, Any]
"""`{"name": ...}` or OpenAI's `{"type": "function", "function": {"name": ...}}`: call this one."""


class SamplingOptions(TypedDict, total=False):
    """How tokens are drawn. The model's generation_config comes before the defaults named here."""

    temperature: float
    """1.0; 0 is greedy."""
    top_k: int
    """Off."""
    top_p: float
    """1.0"""
    min_p: float
    """0.0"""
    typical_p: float
    """1.0"""
    repetition_penalty: float
    """1.0"""
    presence_penalty: float
    """0.0"""
    frequency_penalty: float
    """0.0"""
    logit_bias: Mapping[int, float]
    """By token id: added to its logit, from -100 to 100."""
    allowed_token_ids: Sequence[int]
    """All."""
    bad_words: str | Sequence[str]
    """Strings that the output may not contain."""
    max_tokens: int
    """What is left of the context."""
    min_tokens: int
    """0"""
    stop: str | Sequence[str]
    """At most 64 strings; output ends before the first that appears."""
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    """False"""
    n: int
    """1; choices for each prompt."""
    best_of: int
    """n; so many are drawn, and the n most probable returned. Not for streams."""
    logprobs: int
    """None; 0: of the sampled token; k: of k alternatives as well."""
    prompt_logprobs: int
    """None; like `logprobs`, of the prompt's tokens."""
    seed: int
    """Drawn by the server. Equal seeds give equal outputs."""
    priority: int
    """0; smaller comes first."""

    json_schema: JsonSchema
    """The output is JSON of this schema. At most one of these five."""
    json_object: bool
    """The output is some JSON object."""
    regex: str
    """The output matches all of it."""
    grammar: str
    """The output follows it; in Lark's notation."""
    choice: Sequence[str]
    """The output is one of these."""


class CacheControl(TypedDict, total=False):
    """Keep what is before this point in the servers' prefix caches. At most four in a request."""

    type: Literal["ephemeral"]
    """ephemeral"""
    ttl: Literal["5m", "1h"]
    """5m; for so long after each use."""


class RequestOptions(TypedDict, total=False):
    """What concerns a request as a whole."""

    model: str
    """The only one served."""
    request_id: str
    """Drawn by the server."""
    cache_salt: str
    """Prompts under different salts never share cached KV."""
    cache_control: CacheControl
    """None; a cache point at the end of each prompt, or behind a chat's last message."""
    return_token_ids: bool
    """False"""
    add_special_tokens: bool
    """True for text; False for chats, whose templates write them out."""
    resumable: bool
    """The client's own: True. A broken connection is taken up again, without loss."""
    timeout_s: float
    """The client's own: 600. For the whole call, all attempts together."""


class GenerateOptions(SamplingOptions, RequestOptions, total=False):
    echo: bool
    """False; give the prompt back before the output."""


class ChatOptions(SamplingOptions, RequestOptions, total=False):
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
    """mean"""
    normalize: bool
    """True: vectors of length 1."""
    dimensions: int
    """All; else the first so many, cut off before normalising."""
    request_id: str
    """Drawn by the server."""
    cache_salt: str
    """Prompts under different salts never share cached KV."""
    priority: int
    """0; smaller comes first."""
    timeout_s: float
    """The client's own."""
