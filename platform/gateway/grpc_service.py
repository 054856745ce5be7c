"""The public gRPC face, `baton.v1.Inference`: the HTTP face's checks and streams, as protobuf."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc.aio

from baton.core.errors import InvalidRequest
from baton.core.messages import TokenLogprob
from baton.platform.gateway.chat_messages import chat_messages
from baton.platform.gateway.completion_stream import CompletionStream
from baton.platform.gateway.gateway import CompletionOrder, Gateway
from baton.platform.gateway.grpc_errors import grpc_status
from baton.platform.gateway.request_ids import public_request_id, unique_request_id
from baton.platform.gateway.sampling_options import SamplingOptions
from baton.platform.gateway.schemas import Message
from baton.platform.gateway.text.output_text import TextDelta
from baton.proto import inference_pb2 as pb
from baton.proto.inference_pb2_grpc import InferenceServicer

Context = grpc.aio.ServicerContext[Any, Any]

PROMPT_FIELDS = {"text": "text", "tokens": "tokens.ids", "chat": "chat"}


class InferenceService(InferenceServicer):
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def Generate(  # type: ignore[override]  # the stub knows generators only
        self, request: pb.GenerateRequest, context: Context
    ) -> None:
        """Cancelled by gRPC when the client goes away, which stops the generation."""
        try:
            self._check_key(context)
            public_id = public_request_id(request.request_id, field="request_id")
            order = await self._order(request, public_id, context.time_remaining())
            async with self._gateway.complete(order) as stream:
                async for delta in stream:
                    response = self._response(request, delta)
                    if delta.finish_reason is not None:
                        await stream.close()  # completes the receipt
                        self._complete(response, stream, public_id)
                    if response.ByteSize():
                        response.request_id = public_id
                        response.model = self._gateway.model.name
                        await context.write(response)
        except Exception as error:
            await _abort(context, error)

    async def ListModels(
        self, request: pb.ListModelsRequest, context: Context
    ) -> pb.ListModelsResponse:
        try:
            self._check_key(context)
        except Exception as error:
            await _abort(context, error)
        model = self._gateway.model
        return pb.ListModelsResponse(
            models=[
                pb.Model(
                    id=model.name, created=model.created, max_model_len=self._gateway.max_model_len
                )
            ]
        )

    def _check_key(self, context: Context) -> None:
        metadata = dict(context.invocation_metadata() or ())
        authorization = metadata.get("authorization")
        self._gateway.keys.check(authorization if isinstance(authorization, str) else None)

    async def _order(
        self, request: pb.GenerateRequest, public_id: str, time_left_s: float | None
    ) -> CompletionOrder:
        self._gateway.model.check_name(request.model)
        kind = request.WhichOneof("prompt")
        if kind is None:
            raise InvalidRequest("one of text, tokens and chat is needed", field="prompt")
        names = {
            field.name: f"sampling.{field.name}" for field in request.sampling.DESCRIPTOR.fields
        }
        return CompletionOrder(
            request_id=unique_request_id(public_id),
            prompt=await self._prompt(request, kind),
            options=_options(request.sampling),
            field_by_option={
                **names,
                "num_logprobs": "sampling.logprobs",
                "prompt": PROMPT_FIELDS[kind],
            },
            cache_salt=request.cache_salt,
            time_left_s=time_left_s,
        )

    async def _prompt(self, request: pb.GenerateRequest, kind: str) -> tuple[int, ...]:
        if kind == "tokens":
            return tuple(request.tokens.ids)
        if kind == "text":
            if not request.text:
                raise InvalidRequest("text is empty; it needs at least one character", field="text")
            return await self._gateway.encode(
                request.text, add_special_tokens=True, prompt_field=PROMPT_FIELDS[kind]
            )
        template = self._gateway.model.require_chat_template()
        messages = [Message(role=m.role, content=m.content) for m in request.chat.messages]
        text = template.render(chat_messages(messages, field="chat.messages"))
        return await self._gateway.encode(
            text, add_special_tokens=False, prompt_field=PROMPT_FIELDS[kind]
        )

    def _response(self, request: pb.GenerateRequest, delta: TextDelta) -> pb.GenerateResponse:
        return pb.GenerateResponse(
            text=delta.text,
            token_ids=delta.tokens if request.return_token_ids else (),
            logprobs=[self._logprob(entry) for entry in delta.logprobs],
            finish_reason=delta.finish_reason or "",
        )

    def _logprob(self, entry: TokenLogprob) -> pb.TokenLogprob:
        token_bytes = self._gateway.model.tokenizer.token_bytes
        return pb.TokenLogprob(
            token_id=entry.token,
            token=token_bytes(entry.token),
            logprob=entry.logprob,
            top=[
                pb.TopLogprob(token_id=token, token=token_bytes(token), logprob=logprob)
                for token, logprob in entry.top
            ],
        )

    def _complete(
        self, response: pb.GenerateResponse, stream: CompletionStream, public_id: str
    ) -> None:
        usage, receipt = stream.usage, stream.receipt
        response.usage.prompt_tokens = usage.prompt_tokens
        response.usage.cached_tokens = usage.cached_tokens
        response.usage.output_tokens = usage.output_tokens
        names = [field.name for field in pb.Receipt.DESCRIPTOR.fields]
        response.receipt.CopyFrom(pb.Receipt(**{name: getattr(receipt, name) for name in names}))


def _options(sampling: pb.SamplingOptions) -> SamplingOptions:
    given: dict[str, Any] = {field.name: value for field, value in sampling.ListFields()}
    return SamplingOptions(num_logprobs=given.pop("logprobs", None), **given)


async def _abort(context: Context, error: Exception) -> NoReturn:
    status = grpc_status(error)
    await context.abort(status.code, status.details, status.trailing_metadata)
