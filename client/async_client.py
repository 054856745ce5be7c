"""`BatonClient` for asyncio: the same surface, with `await`, `async with` and `async for`.

async with AsyncBatonClient("localhost:8001") as client:
    result = await client.generate("Once upon a time", max_tokens=50)
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import NamedTuple, TypeVar, Unpack

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.client.async_stream import AsyncStream, noting_closed
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
from baton.proto.inference_pb2_grpc import InferenceStub

T = TypeVar("T")


class _Wire(NamedTuple):
    """The connection, which belongs to an event loop."""

    loop: asyncio.AbstractEventLoop
    channel: grpc.aio.Channel
    stub: InferenceStub
    health: health_pb2_grpc.HealthStub


class AsyncBatonClient:
    """A connection to one server, for the event loop in which it is used first.

    Every method raises BatonClientError.
    """

    def __init__(self, target: str, **options: Unpack[ClientOptions]) -> None:
        """`target` is host:port."""
        self._connection = connection_to(target, options)
        self._calls = Calls(self._connection)
        self._opened: _Wire | None = None
        self._is_closed = False

    async def __aenter__(self) -> AsyncBatonClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection, cancelling running calls."""
        self._is_closed = True
        if self._opened is not None:
            await self._opened.channel.close()

    async def generate(
        self, prompt: Prompt | Sequence[Prompt], **options: Unpack[GenerateOptions]
    ) -> GenerationResult:
        """Continue `prompt`: text, token ids, or several of these."""
        async with self.stream(prompt, **options) as stream:
            return await stream.result()

    def stream(
        self, prompt: Prompt | Sequence[Prompt], **options: Unpack[GenerateOptions]
    ) -> AsyncStream[Delta, GenerationResult]:
        """Like `generate`, as it arrives."""
        return AsyncStream(self._wire.stub, self._calls.generate(prompt, options), self._connection)

    async def chat(
        self, messages: Iterable[ChatMessage], **options: Unpack[ChatOptions]
    ) -> ChatResult:
        """Answer `messages`, each with a `role` (system, user, assistant, tool) and a `content`."""
        async with self.stream_chat(messages, **options) as stream:
            return await stream.result()

    def stream_chat(
        self, messages: Iterable[ChatMessage], **options: Unpack[ChatOptions]
    ) -> AsyncStream[ChatDelta, ChatResult]:
        """Like `chat`, as it arrives."""
        return AsyncStream(self._wire.stub, self._calls.chat(messages, options), self._connection)

    async def tokenize(
        self,
        text: str | Iterable[ChatMessage],
        *,
        model: str = "",
        add_special_tokens: bool | None = None,
    ) -> Tokens:
        """The tokens of a text, or of a conversation as the model's chat template writes it."""
        return await self._run(
            self._calls.tokenize(text, model=model, add_special_tokens=add_special_tokens)
        )

    async def detokenize(self, ids: Sequence[int], *, model: str = "") -> str:
        return await self._run(self._calls.detokenize(ids, model=model))

    async def embed(
        self, inputs: Prompt | Sequence[Prompt], **options: Unpack[EmbedOptions]
    ) -> EmbeddingResult:
        """A vector for each of `inputs`: text, token ids, or several of these."""
        return await self._run(self._calls.embed(inputs, options))

    async def estimate(
        self, prompt: Prompt | Iterable[ChatMessage], **options: Unpack[EstimateOptions]
    ) -> Estimate:
        """Predictions for `generate` or `chat` if called now; nothing is run."""
        return await self._run(self._calls.estimate(prompt, options))

    async def models(self) -> list[Model]:
        return await self._run(self._calls.models())

    async def health(self) -> bool:
        """Whether the server can take a request now. Raises Unavailable if it cannot be reached."""
        try:
            with noting_closed():
                response = await self._wire.health.Check(
                    health_pb2.HealthCheckRequest(service=SERVICE), timeout=HEALTH_TIMEOUT_S
                )
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)

    @property
    def _wire(self) -> _Wire:
        if self._is_closed:
            raise client_closed()
        loop = asyncio.get_running_loop()
        if self._opened is None:
            target, credentials = self._connection.target, self._connection.credentials
            if credentials is None:
                channel = grpc.aio.insecure_channel(target, CHANNEL_OPTIONS)
            else:
                channel = grpc.aio.secure_channel(target, credentials, CHANNEL_OPTIONS)
            stub, health = InferenceStub(channel), health_pb2_grpc.HealthStub(channel)
            self._opened = _Wire(loop, channel, stub, health)
        elif self._opened.loop is not loop:
            raise RuntimeError(
                "an AsyncBatonClient works only in the event loop that first used it; make "
                "another for this loop"
            )
        return self._opened

    async def _run(self, call: UnaryCall[T]) -> T:
        attempts = self._calls.attempts(call.timeout_s)
        while True:
            try:
                with noting_closed():
                    response = await getattr(self._wire.stub, call.method)(
                        call.request,
                        timeout=attempts.time_left_s,
                        metadata=self._connection.metadata,
                    )
                return call.read(response)
            except grpc.RpcError as error:
                await asyncio.sleep(attempts.delay_s_after(from_rpc_error(error)))
