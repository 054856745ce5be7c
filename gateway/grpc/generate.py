"""The method Generate: its request as a completion order, its choices as responses."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from baton.core.errors import InvalidRequest
from baton.gateway.access.api_keys import Caller
from baton.gateway.grpc.answers import ResponseFiller, prompt_progress, watched
from baton.gateway.grpc.cache_control import cache_control
from baton.gateway.grpc.options import FIELD_BY_OPTION, output_rule, sampling_options
from baton.gateway.grpc.prompts import prompt_values
from baton.gateway.requests.call_span import named_call
from baton.gateway.requests.completion_request import CompletionRequest, Prompt
from baton.gateway.requests.gateway import Gateway
from baton.gateway.requests.generations.prompt_progress import PromptProgress
from baton.gateway.requests.prompts import read_prompts, with_cache_point
from baton.gateway.requests.session_keys import session_key
from baton.proto import inference_pb2 as pb


async def generated(
    gateway: Gateway, request: pb.GenerateRequest, caller: Caller, time_left_s: float | None
) -> AsyncGenerator[pb.GenerateResponse]:
    """Raises InvalidRequest before the first response."""
    order = await generate_order(gateway, request, caller, time_left_s)
    completion = gateway.complete(order)
    filler = ResponseFiller(
        gateway.model, order, completion, returns_token_ids=request.return_token_ids
    )
    async with aclosing(watched(gateway, order, completion)) as parts:
        async for part in parts:
            if isinstance(part, PromptProgress):
                yield filler.named(pb.GenerateResponse(prompt_progress=prompt_progress(part)))
                continue
            response = pb.GenerateResponse(text=part.delta.text)
            if filler.filled(response, part, part.delta.finish_reason) is not None:
                yield response


async def generate_order(
    gateway: Gateway, request: pb.GenerateRequest, caller: Caller, time_left_s: float | None
) -> CompletionRequest:
    adapter = gateway.check_model(request.model, caller)
    options = sampling_options(request.sampling)
    return CompletionRequest(
        request_id=named_call(caller.call, request.request_id),
        prompts=with_cache_point(await _prompts(gateway, request), cache_control(request)),
        options=options,
        grammar=await gateway.grammars.accept(output_rule(request.sampling)),
        has_echo=request.echo,
        session=session_key(("session_id", request.session_id)),
        returns_progress=request.return_progress,
        field_by_option=FIELD_BY_OPTION,
        adapter=adapter,
        cache_salt=request.cache_salt,
        caller=caller,
        time_left_s=time_left_s,
    )


async def _prompts(gateway: Gateway, request: pb.GenerateRequest) -> tuple[Prompt, ...]:
    given, field = _given(request)
    return await read_prompts(
        gateway,
        given,
        field,
        adds_special=not request.HasField("add_special_tokens") or request.add_special_tokens,
        max_prompts=gateway.config.max_choices,
    )


def _given(request: pb.GenerateRequest) -> tuple[str | list[Any], str]:
    match request.WhichOneof("prompt"):
        case "text":
            return request.text, "text"
        case "tokens":
            return list(request.tokens.ids), "tokens.ids"
        case "prompts":
            return prompt_values(request.prompts.prompts, "prompts.prompts"), "prompts.prompts"
    raise InvalidRequest("one of text, tokens and prompts is needed", field="prompt")
