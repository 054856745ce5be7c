"""The Python SDK: text, chat and token generation from a Baton server, over gRPC.

with BatonClient("localhost:8001") as client:
    print(client.generate("Once upon a time", max_tokens=50).text)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TypeVar, Unpack, cast

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.client.errors import from_rpc_error
from baton.client.options import GenerateOptions, chat_request, text_request
from baton.client.results import GenerationResult, Model, model_from
from baton.client.retry import RetryPolicy
from baton.client.text_stream import OpenCall, TextStream
from baton.proto import inference_pb2 as pb
from baton.proto.inference_pb2_grpc import InferenceStub

T = TypeVar("T")

SERVICE: str = pb.DESCRIPTOR.services_by_name["Inference"].full_name
HEALTH_TIMEOUT_S = 5.0
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # its default, a minute, overrules the one above
)


class BatonClient:
    """A connection to one server. Threads may share it. Every method raises BatonClientError."""

    def __init__(
        self,
        target: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        retry: RetryPolicy | None = None,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        """`target` is host:port. With `credentials` the connection is encrypted."""
        if credentials is None:
            self._channel = grpc.insecure_channel(target, CHANNEL_OPTIONS)
        else:
            self._channel = grpc.secure_channel(target, credentials, CHANNEL_OPTIONS)
        self._stub = InferenceStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)
        self._timeout_s = timeout_s
        self._retry = RetryPolicy() if retry is None else retry
        self._metadata = () if api_key is None else (("authorization", f"Bearer {api_key}"),)

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
        """Cancels what is still under way."""
        self._channel.close()

    def generate(
        self, prompt: str | Sequence[int], **options: Unpack[GenerateOptions]
    ) -> GenerationResult:
        """Continue `prompt`: text, or token ids."""
        with self.stream(prompt, **options) as stream:
            return stream.result()

    def stream(self, prompt: str | Sequence[int], **options: Unpack[GenerateOptions]) -> TextStream:
        """Like `generate`, as it arrives."""
        return self._stream(text_request(prompt, options), options)

    def chat(
        self, messages: Sequence[Mapping[str, str]], **options: Unpack[GenerateOptions]
    ) -> GenerationResult:
        """Answer `messages`, each with a `role` (system, user, assistant) and a `content`."""
        with self.stream_chat(messages, **options) as stream:
            return stream.result()

    def stream_chat(
        self, messages: Sequence[Mapping[str, str]], **options: Unpack[GenerateOptions]
    ) -> TextStream:
        """Like `chat`, as it arrives."""
        return self._stream(chat_request(messages, options), options)

    def models(self) -> list[Model]:
        response = _translated(
            lambda: self._stub.ListModels(
                pb.ListModelsRequest(), timeout=self._timeout_s, metadata=self._metadata
            )
        )
        return [model_from(model) for model in response.models]

    def health(self) -> bool:
        """Whether the server can take a request now. Raises Unavailable if it cannot be reached."""
        response = _translated(
            lambda: self._health.Check(
                health_pb2.HealthCheckRequest(service=SERVICE), timeout=HEALTH_TIMEOUT_S
            )
        )
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)

    def _stream(self, request: pb.GenerateRequest, options: GenerateOptions) -> TextStream:
        open_call = partial(self._stub.Generate, request, metadata=self._metadata)
        return TextStream(
            cast(OpenCall, open_call),
            timeout_s=options.get("timeout_s", self._timeout_s),
            retry=self._retry,
        )


def _translated(call: Callable[[], T]) -> T:
    try:
        return call()
    except grpc.RpcError as error:
        raise from_rpc_error(error) from error
