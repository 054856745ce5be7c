"""The Python SDK: text, chat, tokens and embeddings from a Baton server, over gRPC.

with BatonClient("localhost:8001") as client:
    print(client.generate("Once upon a time", max_tokens=50).text)
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TypeVar, Unpack

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.client.calls import HEALTH_TIMEOUT_S, SERVICE, Calls, UnaryCall
from baton.client.connection import CHANNEL_OPTIONS, ClientOptions, connection_to
from baton.client.errors import client_closed, from_rpc_error
from baton.client.options import ChatOptions, EmbedOptions, EstimateOptions, GenerateOptions, Prompt
from baton.client.requests import ChatMessage
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
from baton.client.stream import Stream
from baton.proto.inference_pb2_grpc import InferenceStub

T = TypeVar("T")


class BatonClient:
    """A connection to one server. Threads may share it. Every method raises BatonClientError."""

    def __init__(self, target: str, **options: Unpack[ClientOptions]) -> None:
        """`target` is host:port."""
        self._connection = connection = connection_to(target, options)
        if connection.credentials is None:
            self._channel = grpc.insecure_channel(target, CHANNEL_OPTIONS)
        else:
            self._channel = grpc.secure_channel(target, connection.credentials, CHANNEL_OPTIONS)
        self._stub = InferenceStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)
        self._calls = Calls(connection)

    def __enter__(self) -> BatonClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, cancelling running calls."""
        self._channel.close()

    def generate(
        self, prompt: Prompt | Sequence[Prompt], **options: Unpack[GenerateOptions]
    ) -> GenerationResult:
        """Continue `prompt`: text, token ids, or several of these."""
        with self.stream(prompt, **options) as stream:
            return stream.result()

    def stream(
        self, prompt: Prompt | Sequence[Prompt], **options: Unpack[GenerateOptions]
    ) -> Stream[Delta, GenerationResult]:
        """Like `generate`, as it arrives."""
        return Stream(self._stub, self._calls.generate(prompt, options), self._connection)

    def chat(self, messages: Iterable[ChatMessage], **options: Unpack[ChatOptions]) -> ChatResult:
        """Answer `messages`, each with a `role` (system, user, assistant, tool) and a `content`."""
        with self.stream_chat(messages, **options) as stream:
            return stream.result()

    def stream_chat(
        self, messages: Iterable[ChatMessage], **options: Unpack[ChatOptions]
    ) -> Stream[ChatDelta, ChatResult]:
        """Like `chat`, as it arrives."""
        return Stream(self._stub, self._calls.chat(messages, options), self._connection)

    def tokenize(
        self,
        text: str | Iterable[ChatMessage],
        *,
        model: str = "",
        add_special_tokens: bool | None = None,
    ) -> Tokens:
        """The tokens of a text, or of a conversation as the model's chat template writes it."""
        return self._run(
            self._calls.tokenize(text, model=model, add_special_tokens=add_special_tokens)
        )

    def detokenize(self, ids: Sequence[int], *, model: str = "") -> str:
        return self._run(self._calls.detokenize(ids, model=model))

    def embed(
        self, inputs: Prompt | Sequence[Prompt], **options: Unpack[EmbedOptions]
    ) -> EmbeddingResult:
        """A vector for each of `inputs`: text, token ids, or several of these."""
        return self._run(self._calls.embed(inputs, options))

    def estimate(
        self, prompt: Prompt | Iterable[ChatMessage], **options: Unpack[EstimateOptions]
    ) -> Estimate:
        """Predictions for `generate` or `chat` if called now; nothing is run."""
        return self._run(self._calls.estimate(prompt, options))

    def models(self) -> list[Model]:
        return self._run(self._calls.models())

    def health(self) -> bool:
        """Whether the server can take a request now. Raises Unavailable if it cannot be reached."""
        try:
            response = self._health.Check(
                health_pb2.HealthCheckRequest(service=SERVICE), timeout=HEALTH_TIMEOUT_S
            )
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)

    def _run(self, call: UnaryCall[T]) -> T:
        attempts = self._calls.attempts(call.timeout_s)
        while True:
            try:
                response = getattr(self._stub, call.method)(
                    call.request,
                    timeout=attempts.time_left_s,
                    metadata=self._connection.metadata,
                )
            except grpc.RpcError as error:
                time.sleep(attempts.delay_s_after(from_rpc_error(error)))
            except ValueError as error:  # as gRPC says it
                raise client_closed() from error
            else:
                return call.read(response)
