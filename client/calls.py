"""The clients' calls as values: method, request, and parser of the answer.

The synchronous and the asynchronous client differ only in how they carry these out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from google.protobuf.message import Message

from baton.client.connection import Connection
from baton.client.options import ChatOptions, EmbedOptions, EstimateOptions, GenerateOptions, Prompt
from baton.client.requests import (
    ChatMessage,
    chat_request,
    detokenize_request,
    embed_request,
    generate_request,
    tokenize_request,
)
from baton.client.responses import (
    chat_delta_from,
    chat_from,
    delta_from,
    embeddings_from,
    estimate_from,
    generation_from,
    models_from,
    tokens_from,
)
from baton.client.results import (
    ChatDelta,
    ChatResult,
    Delta,
    EmbeddingResult,
    Estimate,
    GenerationResult,
    Model,
    Tokens,
)
from baton.client.retry import Attempts, checked_timeout_s
from baton.proto import inference_pb2 as pb

D = TypeVar("D")
T = TypeVar("T")

END_TIMEOUT_S = 1.0
HEALTH_TIMEOUT_S = 5.0
SERVICE: str = pb.DESCRIPTOR.services_by_name["Inference"].full_name


@dataclass(frozen=True, slots=True, kw_only=True)
class UnaryCall(Generic[T]):
    method: str
    request: Message
    read: Callable[[Any], T]
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCall(Generic[D, T]):
    method: str
    resume_method: str
    request: Message
    read: Callable[[Any], D]
    join: Callable[[Sequence[D]], T]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Calls:
    """Builds calls. Raises TypeError and InvalidRequest for invalid arguments."""

    connection: Connection

    def generate(
        self, prompt: Prompt | Sequence[Prompt], options: GenerateOptions
    ) -> StreamCall[Delta, GenerationResult]:
        request = generate_request(prompt, options)
        request.resumable = self._is_resumable(options)
        return StreamCall(
            method="Generate",
            resume_method="ResumeGenerate",
            request=request,
            read=delta_from,
            join=generation_from,
            timeout_s=self._timeout_s(options),
        )

    def chat(
        self, messages: Iterable[ChatMessage], options: ChatOptions
    ) -> StreamCall[ChatDelta, ChatResult]:
        request = chat_request(messages, options)
        request.resumable = self._is_resumable(options)
        return StreamCall(
            method="Chat",
            resume_method="ResumeChat",
            request=request,
            read=chat_delta_from,
            join=chat_from,
            timeout_s=self._timeout_s(options),
        )

    def tokenize(
        self,
        text: str | Iterable[ChatMessage],
        *,
        model: str,
        add_special_tokens: bool | None,
    ) -> UnaryCall[Tokens]:
        request = tokenize_request(text, model=model, add_special_tokens=add_special_tokens)
        return self._unary("Tokenize", request, tokens_from)

    def detokenize(self, ids: Sequence[int], *, model: str) -> UnaryCall[str]:
        request = detokenize_request(ids, model=model)
        return self._unary("Detokenize", request, lambda response: cast(str, response.text))

    def embed(
        self, inputs: Prompt | Sequence[Prompt], options: EmbedOptions
    ) -> UnaryCall[EmbeddingResult]:
        return UnaryCall(
            method="Embed",
            request=embed_request(inputs, options),
            read=embeddings_from,
            timeout_s=self._timeout_s(options),
        )

    def estimate(
        self, prompt: Prompt | Iterable[ChatMessage], options: EstimateOptions
    ) -> UnaryCall[Estimate]:
        """`prompt` is text, token ids, or a conversation."""
        given = list(prompt)
        request = pb.EstimateRequest()
        if isinstance(prompt, str) or (given and isinstance(given[0], int)):
            text_or_ids = prompt if isinstance(prompt, str) else cast(list[int], given)
            request.generate.CopyFrom(generate_request(text_or_ids, cast(GenerateOptions, options)))
        else:
            request.chat.CopyFrom(
                chat_request(cast(list[ChatMessage], given), cast(ChatOptions, options))
            )
        return UnaryCall(
            method="Estimate",
            request=request,
            read=estimate_from,
            timeout_s=self._timeout_s(options),
        )

    def models(self) -> UnaryCall[list[Model]]:
        return self._unary("ListModels", pb.ListModelsRequest(), models_from)

    def attempts(self, timeout_s: float) -> Attempts:
        return Attempts(self.connection.retry, timeout_s)

    def _unary(self, method: str, request: Message, read: Callable[[Any], T]) -> UnaryCall[T]:
        timeout_s = self.connection.timeout_s
        return UnaryCall(method=method, request=request, read=read, timeout_s=timeout_s)

    def _timeout_s(self, options: Mapping[str, Any]) -> float:
        given = options.get("timeout_s")
        return self.connection.timeout_s if given is None else checked_timeout_s(given)

    def _is_resumable(self, options: Mapping[str, Any]) -> bool:
        given = options.get("resumable")
        return self.connection.is_resumable if given is None else bool(given)
