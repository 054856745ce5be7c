"""The public gRPC API, `baton.v1.Inference`: the checks and streams of the HTTP API, as
protobuf."""

# mypy: disable-error-code="override"
# the stub's methods begin with a request that has come

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from baton.core.clock import monotonic
from baton.core.tracing import UNTRACED, TraceContext, TracedCall
from baton.gateway.access.api_keys import ANYBODY, Caller
from baton.gateway.access.call_log import EndedCall, log_call
from baton.gateway.access.objectives import objective_of
from baton.gateway.grpc.call_timeouts import CallTimeouts, Context
from baton.gateway.grpc.chat import chatted
from baton.gateway.grpc.errors import translation_of
from baton.gateway.grpc.estimates import answer_estimate
from baton.gateway.grpc.generate import generated
from baton.gateway.grpc.incoming import IncomingRequest
from baton.gateway.grpc.resuming import StreamWriter, end_stream
from baton.gateway.grpc.text import answer_detokenize, answer_embed, answer_tokenize
from baton.gateway.requests.call_span import begin_call
from baton.gateway.requests.request_ids import loggable_request_id
from baton.proto import inference_pb2 as pb
from baton.proto.inference_pb2_grpc import InferenceServicer
from grpc import StatusCode

OPERATIONS = {"Generate": "text_completion", "Chat": "chat", "Embed": "embeddings"}
"""OpenTelemetry's operation name of each method."""
SERVERS_FAULT = frozenset(
    {
        StatusCode.UNKNOWN,
        StatusCode.DEADLINE_EXCEEDED,
        StatusCode.UNIMPLEMENTED,
        StatusCode.INTERNAL,
        StatusCode.UNAVAILABLE,
        StatusCode.DATA_LOSS,
    }
)
"""Statuses that OpenTelemetry counts as server errors."""


class InferenceService(InferenceServicer):
    """gRPC cancels a method when its client disconnects, which stops its generation. Streams are
    written here rather than returned: the stub knows generators only.
    """

    def __init__(self, timeouts: CallTimeouts) -> None:
        self._timeouts = timeouts
        self._gateway = timeouts.gateway

    async def Generate(self, given: IncomingRequest[pb.GenerateRequest], context: Context) -> None:
        async with self._answering(context, "Generate") as caller:
            request = await given.read()
            writer = StreamWriter(context, self._timeouts, pb.GenerateResponse)
            respond = partial(generated, self._gateway, time_left_s=context.time_remaining())
            if request.resumable:
                await writer.write_resumable(request, caller, respond)
            else:
                await writer.write_all(respond(request, caller))

    async def Chat(self, given: IncomingRequest[pb.ChatRequest], context: Context) -> None:
        async with self._answering(context, "Chat") as caller:
            request = await given.read()
            writer = StreamWriter(context, self._timeouts, pb.ChatResponse)
            respond = partial(chatted, self._gateway, time_left_s=context.time_remaining())
            if request.resumable:
                await writer.write_resumable(request, caller, respond)
            else:
                await writer.write_all(respond(request, caller))

    async def ResumeGenerate(
        self, given: IncomingRequest[pb.ResumeRequest], context: Context
    ) -> None:
        async with self._answering(context, "ResumeGenerate") as caller:
            writer = StreamWriter(context, self._timeouts, pb.GenerateResponse)
            respond = partial(generated, self._gateway, time_left_s=context.time_remaining())
            await writer.write_rest(await given.read(), pb.GenerateRequest, caller, respond)

    async def ResumeChat(self, given: IncomingRequest[pb.ResumeRequest], context: Context) -> None:
        async with self._answering(context, "ResumeChat") as caller:
            writer = StreamWriter(context, self._timeouts, pb.ChatResponse)
            respond = partial(chatted, self._gateway, time_left_s=context.time_remaining())
            await writer.write_rest(await given.read(), pb.ChatRequest, caller, respond)

    async def EndStream(
        self, given: IncomingRequest[pb.EndStreamRequest], context: Context
    ) -> pb.EndStreamResponse:
        async with self._answering(context, "EndStream"):
            request = await given.read()
            await end_stream(context, request, self._gateway)
            return pb.EndStreamResponse()

    async def Tokenize(
        self, given: IncomingRequest[pb.TokenizeRequest], context: Context
    ) -> pb.TokenizeResponse:
        async with self._answering(context, "Tokenize") as caller:
            request = await given.read()
            return await answer_tokenize(self._gateway, request, caller)

    async def Detokenize(
        self, given: IncomingRequest[pb.DetokenizeRequest], context: Context
    ) -> pb.DetokenizeResponse:
        async with self._answering(context, "Detokenize") as caller:
            request = await given.read()
            return await answer_detokenize(self._gateway, request, caller)

    async def Embed(
        self, given: IncomingRequest[pb.EmbedRequest], context: Context
    ) -> pb.EmbedResponse:
        async with self._answering(context, "Embed") as caller:
            request = await given.read()
            return await answer_embed(self._gateway, request, caller, context.time_remaining())

    async def Estimate(
        self, given: IncomingRequest[pb.EstimateRequest], context: Context
    ) -> pb.EstimateResponse:
        async with self._answering(context, "Estimate") as caller:
            request = await given.read()
            return await answer_estimate(self._gateway, request, caller)

    async def ListModels(
        self, given: IncomingRequest[pb.ListModelsRequest], context: Context
    ) -> pb.ListModelsResponse:
        async with self._answering(context, "ListModels") as caller:
            await given.read()
            model = self._gateway.model
            max_len = self._gateway.max_model_len
            known = [
                pb.Model(
                    id=name,
                    created=model.created,
                    max_model_len=max_len,
                    root=model.root_of(name),
                    parent=model.parent_of(name) or "",
                )
                for name in self._gateway.usable_names(caller)
            ]
            return pb.ListModelsResponse(models=known)

    @asynccontextmanager
    async def _answering(self, context: Context, method: str) -> AsyncIterator[Caller]:
        """Check the key, yield its caller, send errors, and count how the call ended."""
        outcome, call, caller = StatusCode.CANCELLED, UNTRACED, ANYBODY
        began_s, metadata = monotonic(), dict(context.invocation_metadata() or ())
        watch = self._gateway.call_watch
        if watch is not None:
            watch.begins("grpc")
        try:
            authorization = metadata.get("authorization")
            given = authorization if isinstance(authorization, str) else None
            caller = self._gateway.keys.check(given)
            caller.check_infers()
            if method in OPERATIONS:
                call = self._begin_call(method, metadata)
                ignored: list[str] = []
                slo = objective_of(self._gateway.config, caller, metadata.get, ignored)
                for name in ignored:
                    self._gateway.metrics.ignored_fields.add(1, name)
                caller = replace(caller, call=call, slo=slo)
            yield caller
            outcome = StatusCode.OK
        except Exception as error:
            outcome = translation_of(error).code
            await self._timeouts.abort(context, error)
        finally:
            self._gateway.metrics.calls.add(1, method, outcome.name)
            if watch is not None:
                watch.ended("grpc", "", method, outcome.name, monotonic() - began_s)
            if call.span.is_recording:
                call.span.set({"rpc.response.status_code": outcome.name})
            call.span.end(outcome.name if outcome in SERVERS_FAULT else "")
            ended = EndedCall(
                method="grpc",
                path=method,
                status=outcome.name,
                seconds=monotonic() - began_s,
                request_id=loggable_request_id(metadata.get("x-request-id", "")),
                caller=caller,
            )
            log_call(ended, has_access_log=self._gateway.config.access_log)

    def _begin_call(self, method: str, metadata: Mapping[str, str | bytes]) -> TracedCall:
        return begin_call(
            self._gateway,
            OPERATIONS[method],
            parent=TraceContext(
                str(metadata.get("traceparent", "")), str(metadata.get("tracestate", ""))
            ),
            attributes={"rpc.system.name": "grpc", "rpc.method": method},
        )
