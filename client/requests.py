"""Builds requests from callers' arguments.

Raises TypeError for unknown options and wrong types, and InvalidRequest, naming the field as the
server would, for values that cannot be encoded (a negative count, an unpaired surrogate).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct

from baton.client.errors import invalid_request
from baton.client.options import (
    ChatOptions,
    EmbedOptions,
    GenerateOptions,
    JsonSchema,
    Prompt,
    StructuredOptions,
)
from baton.client.results import AssistantMessage
from baton.client.sampling_options import SamplingOptions
from baton.proto import inference_pb2 as pb

M = TypeVar("M", bound=Message)

ChatMessage = Mapping[str, Any] | AssistantMessage
"""`role`, `content`, and where they apply `name`, `tool_calls`, `tool_call_id`, `reasoning` and
`cache_control`."""

SAMPLING_FIELDS = frozenset(SamplingOptions.__annotations__)
STRUCTURED_FIELDS = tuple(StructuredOptions.__annotations__)
LISTS_OF_STRINGS = ("stop", "bad_words")
TOOL_FIELDS = frozenset({"name", "description", "parameters", "strict"})
TOOL_MODES = {
    "none": pb.TOOL_MODE_NONE,
    "auto": pb.TOOL_MODE_AUTO,
    "required": pb.TOOL_MODE_REQUIRED,
}
POOLINGS = {"mean": pb.POOLING_MEAN, "last": pb.POOLING_LAST}


def generate_request(
    prompt: Prompt | Sequence[Prompt], options: GenerateOptions
) -> pb.GenerateRequest:
    """`prompt` is text, token ids, or several of these."""
    request = pb.GenerateRequest()
    if isinstance(prompt, str):
        _set(request, "text", prompt)
    elif _is_token_ids(prompt):
        _set(request, "tokens", _message(pb.TokenIds, "tokens.ids", ids=prompt))
    else:
        several = cast(Sequence[Prompt], prompt)
        prompts = [_prompt(f"prompts.prompts[{i}]", each) for i, each in enumerate(several)]
        request.prompts.prompts.extend(prompts)
    _apply(request, options, GenerateOptions)
    return request


def chat_request(messages: Iterable[ChatMessage], options: ChatOptions) -> pb.ChatRequest:
    request = pb.ChatRequest(messages=_messages(messages, "messages"))
    own = {"tools", "tool_choice", "chat_template_kwargs"}
    _apply(request, options, ChatOptions, apart=own)
    for index, tool in enumerate(options.get("tools") or ()):
        request.tools.append(_tool(f"tools[{index}]", tool))
    choice = options.get("tool_choice")
    if isinstance(choice, Mapping):
        named = choice.get("function", choice)
        name = named.get("name") if isinstance(named, Mapping) else None
        if not isinstance(name, str):
            raise TypeError(f"tool_choice names no function: {choice!r}")
        _set(request, "function", name)
    elif choice is not None:
        if choice not in TOOL_MODES:
            raise invalid_request(
                f"tool_choice must be one of {', '.join(TOOL_MODES)} or {{'name': ...}}, "
                f"not {choice!r}",
                field="tool_choice",
            )
        request.tool_mode = TOOL_MODES[choice]
    variables = options.get("chat_template_kwargs")
    if variables is not None:
        request.chat_template_kwargs.CopyFrom(_struct(variables, "chat_template_kwargs"))
    return request


def tokenize_request(
    text: str | Iterable[ChatMessage], *, model: str, add_special_tokens: bool | None
) -> pb.TokenizeRequest:
    request = pb.TokenizeRequest()
    _set(request, "model", model)
    if isinstance(text, str):
        _set(request, "text", text)
    else:
        request.chat.messages.extend(_messages(text, "chat.messages"))
    if add_special_tokens is not None:
        request.add_special_tokens = add_special_tokens
    return request


def detokenize_request(ids: Sequence[int], *, model: str) -> pb.DetokenizeRequest:
    request = _message(pb.DetokenizeRequest, "ids", ids=ids)
    _set(request, "model", model)
    return request


def embed_request(inputs: Prompt | Sequence[Prompt], options: EmbedOptions) -> pb.EmbedRequest:
    """`inputs` are text, token ids, or several of these."""
    is_one = isinstance(inputs, str) or _is_token_ids(inputs)
    several = [cast(Prompt, inputs)] if is_one else cast(Sequence[Prompt], inputs)
    request = pb.EmbedRequest(
        inputs=[_prompt(f"inputs[{index}]", each) for index, each in enumerate(several)]
    )
    _refuse_unknown(options, EmbedOptions)
    for name, value in options.items():
        if name == "timeout_s" or value is None:
            continue
        if name == "pooling":
            if value not in POOLINGS:
                raise invalid_request(
                    f"pooling must be mean or last, not {value!r}", field="pooling"
                )
            value = POOLINGS[value]
        _set(request, name, value)
    return request


def schema_text(schema: JsonSchema) -> str:
    """A schema as JSON."""
    if isinstance(schema, str):
        return schema
    if not isinstance(schema, Mapping):
        if not hasattr(schema, "model_json_schema"):
            raise TypeError(
                f"a schema is a mapping, JSON or a class with model_json_schema, not {schema!r}"
            )
        schema = schema.model_json_schema()
    return json.dumps(schema)


def _apply(
    request: pb.GenerateRequest | pb.ChatRequest,
    options: GenerateOptions | ChatOptions,
    kind: type,
    apart: frozenset[str] | set[str] = frozenset(),
) -> None:
    """Write the options into the fields of the same names."""
    _refuse_unknown(options, kind)
    for name, value in options.items():
        if name == "timeout_s" or name in apart or value is None:
            continue
        if name in LISTS_OF_STRINGS and isinstance(value, str):
            value = [value]
        if name in STRUCTURED_FIELDS:
            _set_structured(request.sampling, name, value)
        elif name in SAMPLING_FIELDS:
            _set(request.sampling, name, value, path=f"sampling.{name}")
        else:
            _set(request, name, value)


def _set_structured(sampling: pb.SamplingOptions, name: str, value: Any) -> None:
    if sampling.HasField("structured_output"):
        raise invalid_request(
            f"{', '.join(STRUCTURED_FIELDS)} exclude each other; give one",
            field="sampling.structured_output",
        )
    if name == "json_schema":
        value = schema_text(value)
    elif name == "choice":
        value = _message(pb.Choices, "sampling.structured_output.choice", choices=value)
    path = f"sampling.structured_output.{name}"
    sampling.structured_output.CopyFrom(_message(pb.StructuredOutput, path, **{name: value}))


def _messages(messages: Iterable[ChatMessage], path: str) -> list[pb.ChatMessage]:
    if isinstance(messages, str | Mapping) or not isinstance(messages, Iterable):
        raise TypeError(f"{path} is a list of messages, not {type(messages).__name__}")
    return [_chat_message(f"{path}[{i}]", message) for i, message in enumerate(messages)]


def _chat_message(path: str, message: ChatMessage) -> pb.ChatMessage:
    fields = message.as_dict() if isinstance(message, AssistantMessage) else message
    if not isinstance(fields, Mapping):
        raise TypeError(f"{path} is a mapping with role and content, not {type(fields).__name__}")
    content = fields.get("content")
    if not isinstance(content, str | None):
        raise TypeError(f"{path}.content is text, not {type(content).__name__}")
    given = {name: value for name, value in fields.items() if value is not None}
    calls = [
        _tool_call(f"{path}.tool_calls[{i}]", c) for i, c in enumerate(given.pop("tool_calls", ()))
    ]
    return _message(pb.ChatMessage, path, **given, tool_calls=calls)


def _tool_call(path: str, call: Mapping[str, Any]) -> pb.ToolCall:
    """Ours, or OpenAI's with a `function` inside."""
    fields = {**call, **call.get("function", {})}
    for name in ("type", "function", "index"):
        fields.pop(name, None)
    return _message(pb.ToolCall, path, **fields)


def _tool(path: str, tool: Mapping[str, Any]) -> pb.Tool:
    fields = dict(tool.get("function", tool))
    if unknown := fields.keys() - TOOL_FIELDS:
        raise TypeError(f"{path}: unknown {', '.join(sorted(unknown))}")
    if fields.get("parameters") is not None:
        fields["parameters"] = schema_text(fields["parameters"])
    return _message(pb.Tool, path, **fields)


def _struct(values: Mapping[str, Any], path: str) -> Struct:
    struct = Struct()
    try:
        struct.update(dict(values))
    except (ValueError, TypeError) as error:
        raise invalid_request(f"{path}: {error}", field=path) from error
    return struct


def _prompt(path: str, prompt: Prompt) -> pb.Prompt:
    if isinstance(prompt, str):
        return _message(pb.Prompt, f"{path}.text", text=prompt)
    tokens = _message(pb.TokenIds, f"{path}.tokens.ids", ids=prompt)
    return pb.Prompt(tokens=tokens)


def _is_token_ids(prompt: Sequence[Any]) -> bool:
    """An empty sequence counts as token ids, which the server refuses. Raises TypeError for what is
    no prompt at all."""
    if not hasattr(prompt, "__len__") or isinstance(prompt, Mapping | bytes):
        kind = type(prompt).__name__
        raise TypeError(f"a prompt is text, a list of token ids, or several of these, not {kind}")
    return len(prompt) == 0 or not isinstance(prompt[0], str | Sequence)


def _refuse_unknown(options: Mapping[str, Any], kind: type) -> None:
    for name in options:
        if name not in kind.__annotations__:
            raise TypeError(f"unknown option {name!r}")


def _set(message: Message, name: str, value: Any, *, path: str = "") -> None:
    message.MergeFrom(_message(type(message), path or name, **{name: value}))


def _message(kind: type[M], path: str, **fields: Any) -> M:
    """Build a message; refuses values that cannot be encoded, as the server would."""
    try:
        return kind(**fields)
    except TypeError as error:  # which says nothing of where
        raise TypeError(f"{path} has a value of the wrong type: {error}") from error
    except ValueError as error:
        raise invalid_request(f"{path}: {error}", field=path) from error
