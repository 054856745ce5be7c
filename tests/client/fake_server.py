"""A gRPC server that answers as scripted, and records what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from baton.proto import inference_pb2 as pb
from baton.proto.inference_pb2_grpc import InferenceServicer, add_InferenceServicer_to_server

Step = Callable[[grpc.ServicerContext], Iterator[Any]]


def receipt() -> pb.Receipt:
    return pb.Receipt(decode_replica="d0", attempts=1, notes=["smooth"])


def usage() -> pb.Usage:
    return pb.Usage(prompt_tokens=3, cached_tokens=2, output_tokens=4)


def response(text: str, **fields: Any) -> pb.GenerateResponse:
    return pb.GenerateResponse(request_id="r", model="m", text=text, **fields)


def last_response(text: str = "", **fields: Any) -> pb.GenerateResponse:
    ends = {"finish_reason": "length", "usage": usage(), "receipt": receipt()}
    return response(text, **{**ends, **fields})


def numbered(first: int, *responses: Any) -> list[Any]:
    """As responses of the resumable stream `s`."""
    for sequence, each in enumerate(responses, start=first):
        each.stream_id, each.sequence = "s", sequence
    return list(responses)


def answering(*responses: Message) -> Step:
    return lambda context: iter(responses)


def failing(code: grpc.StatusCode, *before: Message, details: tuple[Message, ...] = ()) -> Step:
    """`details` make it an error of the server's own; without, one of the connection."""

    def step(context: grpc.ServicerContext) -> Iterator[Any]:
        yield from before
        if details:
            status = status_pb2.Status(code=code.value[0], message="as scripted")
            for detail in details:
                status.details.add().Pack(detail)
            context.set_trailing_metadata(
                (("grpc-status-details-bin", status.SerializeToString()),)
            )
        context.abort(code, "as scripted")

    return step


def reason(name: str) -> error_details_pb2.ErrorInfo:
    return error_details_pb2.ErrorInfo(reason=name, domain="baton")


def retry_after(milliseconds: int) -> error_details_pb2.RetryInfo:
    return error_details_pb2.RetryInfo(retry_delay=Duration(nanos=milliseconds * 1_000_000))


def bad_field(name: str) -> error_details_pb2.BadRequest:
    violation = error_details_pb2.BadRequest.FieldViolation(field=name, description="bad")
    return error_details_pb2.BadRequest(field_violations=[violation])


@dataclass
class FakeService(InferenceServicer):
    """Each call takes the next step, whatever its method."""

    steps: list[Step]
    methods: list[str] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)
    metadata: list[dict[str, str | bytes]] = field(default_factory=list)
    times_left_s: list[float] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    ended_streams: list[str] = field(default_factory=list)

    def Generate(self, request: Any, context: Any) -> Iterator[Any]:
        yield from self._stream("Generate", request, context)

    def Chat(self, request: Any, context: Any) -> Iterator[Any]:
        yield from self._stream("Chat", request, context)

    def ResumeGenerate(self, request: Any, context: Any) -> Iterator[Any]:
        yield from self._stream("ResumeGenerate", request, context)

    def ResumeChat(self, request: Any, context: Any) -> Iterator[Any]:
        yield from self._stream("ResumeChat", request, context)

    def EndStream(self, request: Any, context: Any) -> Any:
        self.ended_streams.append(request.stream_id)
        return pb.EndStreamResponse()

    def Tokenize(self, request: Any, context: Any) -> Any:
        return self._unary("Tokenize", request, context)

    def Detokenize(self, request: Any, context: Any) -> Any:
        return self._unary("Detokenize", request, context)

    def Embed(self, request: Any, context: Any) -> Any:
        return self._unary("Embed", request, context)

    def Estimate(self, request: Any, context: Any) -> Any:
        return self._unary("Estimate", request, context)

    def ListModels(self, request: Any, context: Any) -> Any:
        return self._unary("ListModels", request, context)

    def _unary(self, method: str, request: Any, context: Any) -> Any:
        self._record(method, request, context)
        return next(self.steps.pop(0)(context))

    def _stream(self, method: str, request: Any, context: Any) -> Iterator[Any]:
        context.add_callback(self.ended.set)
        self._record(method, request, context)
        yield from self.steps.pop(0)(context)

    def _record(self, method: str, request: Any, context: Any) -> None:
        self.methods.append(method)
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        self.times_left_s.append(context.time_remaining())


@contextmanager
def fake_server(
    *steps: Step, credentials: grpc.ServerCredentials | None = None
) -> Iterator[tuple[FakeService, str]]:
    service = FakeService(list(steps))
    server = grpc.server(ThreadPoolExecutor(4))
    add_InferenceServicer_to_server(service, server)
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield service, f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
