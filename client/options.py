"""What a caller may ask of one generation, and how it is written as a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, TypeVar

from google.protobuf.message import Message

from baton.client.errors import invalid_request
from baton.proto import inference_pb2 as pb

M = TypeVar("M", bound=Message)


class GenerateOptions(TypedDict, total=False):
    """What is left out takes the model's own default, then the one named here."""

    temperature: float
    """1.0; 0 is greedy."""
    top_k: int
    """Off."""
    top_p: float
    """1.0"""
    min_p: float
    """0.0"""
    repetition_penalty: float
    """1.0"""
    presence_penalty: float
    """0.0"""
    frequency_penalty: float
    """0.0"""
    max_tokens: int
    """What is left of the context."""
    min_tokens: int
    """0"""
    stop: str | Sequence[str]
    """At most 64 strings; output ends before the first that appears."""
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    """False"""
    logprobs: int
    """None; 0: of the sampled token; n: of n alternatives as well."""
    seed: int
    """Drawn by the server. Equal seeds give equal outputs."""

    model: str
    """The only one served."""
    request_id: str
    """Drawn by the server."""
    return_token_ids: bool
    """False"""
    cache_salt: str
    """Prompts under different salts never share cached KV."""
    timeout_s: float
    """The client's own."""


REQUEST_FIELDS = frozenset({"model", "request_id", "return_token_ids", "cache_salt"})


def text_request(prompt: str | Sequence[int], options: GenerateOptions) -> pb.GenerateRequest:
    """`prompt` is text, or token ids."""
    if isinstance(prompt, str):
        return _request(options, text=prompt)
    return _request(options, tokens=_message(pb.TokenIds, "tokens.ids", {"ids": prompt}))


def chat_request(
    messages: Sequence[Mapping[str, str]], options: GenerateOptions
) -> pb.GenerateRequest:
    """`messages` have a `role` and a `content` each."""
    chat = pb.Chat(
        messages=[
            _message(pb.ChatMessage, f"chat.messages[{index}]", dict(message))
            for index, message in enumerate(messages)
        ]
    )
    return _request(options, chat=chat)


def _request(options: GenerateOptions, **prompt: Any) -> pb.GenerateRequest:
    """Raises TypeError for unknown options and wrong types, InvalidRequest for wrong values."""
    request = _message(pb.GenerateRequest, next(iter(prompt)), prompt)
    for name, value in options.items():
        if name == "timeout_s" or value is None:
            continue
        if name not in GenerateOptions.__annotations__:
            raise TypeError(f"unknown option {name!r}")
        if name == "stop" and isinstance(value, str):
            value = [value]
        if name in REQUEST_FIELDS:
            request.MergeFrom(_message(pb.GenerateRequest, name, {name: value}))
        else:
            path = f"sampling.{name}"
            request.sampling.MergeFrom(_message(pb.SamplingOptions, path, {name: value}))
    return request


def _message(kind: type[M], path: str, fields: dict[str, Any]) -> M:
    """Refuses what has no wire form, such as a negative count, as the server would."""
    try:
        return kind(**fields)
    except ValueError as error:
        raise invalid_request(f"{path}: {error}", field=path) from error
