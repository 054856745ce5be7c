"""One conversation, three ways: HTTP whole, HTTP streamed, gRPC. One answer, or one refusal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import httpx
import pytest
from google.rpc import error_details_pb2, status_pb2
from tests.gateway.scripted import (
    TEMPLATE,
    Script,
    Serving,
    events_of,
    make_model,
    serving,
    tokens_of,
)

from baton.core.errors import Overloaded, Unavailable
from baton.proto import inference_pb2 as pb
from baton.proto.inference_pb2_grpc import InferenceStub

FOX = tokens_of("the quick brown fox — 日本")
Message = dict[str, str]
Outcome = dict[int, tuple[str, str, int]] | tuple[str, str | None, str]
"""By choice: text, how it ended, how many logprobs; or of an error: code, field, message."""


@dataclass(frozen=True, kw_only=True)
class Case:
    messages: Sequence[Message] = ({"role": "user", "content": "hi"},)
    options: dict[str, Any] = field(default_factory=dict)
    num_logprobs: int | None = None
    script: Script = field(default_factory=lambda: Script(tokens=FOX, ends_with_eos=True))
    template: str | None = TEMPLATE


def body_of(case: Case, **others: Any) -> dict[str, Any]:
    body = {"messages": list(case.messages), **case.options, **others}
    if case.num_logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": case.num_logprobs}
    return body


def read_http(chunks: Sequence[dict[str, Any]], part: str) -> Outcome:
    choices: dict[int, tuple[str, str, int]] = {}
    for chunk in chunks:
        if error := chunk.get("error"):
            return plain(error["code"] or "invalid_request", error["param"], error["message"])
        for choice in chunk["choices"]:
            text, reason, num = choices.get(choice["index"], ("", "", 0))
            logprobs = choice["logprobs"] or {"content": []}
            choices[choice["index"]] = (
                text + (choice[part].get("content") or ""),
                choice["finish_reason"] or reason,
                num + len(logprobs["content"]),
            )
    return choices


async def whole_over_http(gateway: Serving, case: Case) -> Outcome:
    response = await gateway.http.post("/v1/chat/completions", json=body_of(case))
    return read_http([response.json()], "message")


async def streamed_over_http(gateway: Serving, case: Case) -> Outcome:
    body = body_of(case, stream=True)
    response = await gateway.http.post("/v1/chat/completions", json=body)
    is_stream = response.status_code == httpx.codes.OK
    return read_http(events_of(response) if is_stream else [response.json()], "delta")


async def over_grpc(gateway: Serving, case: Case) -> Outcome:
    sampling = pb.SamplingOptions(**case.options)
    if case.num_logprobs is not None:
        sampling.logprobs = case.num_logprobs
    messages = [pb.ChatMessage(role=m["role"], content=m["content"]) for m in case.messages]
    choices: dict[int, tuple[str, str, int]] = {}
    async with grpc.aio.insecure_channel(gateway.grpc_target) as channel:
        call = InferenceStub(channel).Chat(pb.ChatRequest(messages=messages, sampling=sampling))
        try:
            async for response in call:
                text, reason, num = choices.get(response.index, ("", "", 0))
                choices[response.index] = (
                    text + response.content,
                    response.finish_reason or reason,
                    num + len(response.logprobs),
                )
        except grpc.aio.AioRpcError as error:
            return refusal_in(error)
    return choices


def refusal_in(error: grpc.aio.AioRpcError) -> Outcome:
    metadata = {key: value for key, value in error.trailing_metadata()}
    status = status_pb2.Status.FromString(metadata["grpc-status-details-bin"])
    info, request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details:
        _ = detail.Unpack(info) or detail.Unpack(request)
    where = next((violation.field for violation in request.field_violations), None)
    return plain(info.reason.lower(), where, status.message)


def plain(code: str, where: str | None, message: str) -> tuple[str, str | None, str]:
    """Without the faces' own names for one thing."""

    def renamed(text: str) -> str:
        return text.replace("sampling.", "").replace("top_logprobs", "logprobs")

    return code, where and renamed(where), renamed(message)


async def outcomes(case: Case) -> list[Outcome]:
    model = make_model(template=case.template)
    async with serving(case.script, model=model) as gateway:
        return [
            await ask(gateway, case) for ask in (whole_over_http, streamed_over_http, over_grpc)
        ]


ANSWERED = {
    "plain": Case(),
    "system": Case(
        messages=({"role": "system", "content": "brief"}, {"role": "user", "content": "hi"})
    ),
    "limit": Case(options={"max_tokens": 4}),
    "choices": Case(options={"n": 3}),
    "stop": Case(options={"stop": ["brown"]}),
    "logprobs": Case(num_logprobs=2),
    "many tokens at once": Case(script=Script(tokens=FOX, num_per_update=5)),
}


@pytest.mark.parametrize("name", ANSWERED)
async def test_an_answer_is_the_same_over_both_faces(name: str) -> None:
    whole, streamed, over = await outcomes(ANSWERED[name])

    assert isinstance(whole, dict), whole
    assert streamed == over == whole


REFUSED = {
    "no messages": Case(messages=()),
    "unknown role": Case(messages=({"role": "robot", "content": "hi"},)),
    "too long": Case(messages=({"role": "user", "content": "word " * 500},)),
    "refused by the template": Case(
        messages=({"role": "user", "content": "a"}, {"role": "system", "content": "b"})
    ),
    "no template": Case(template=None),
    "too many choices": Case(options={"n": 129}),
    "option": Case(options={"top_p": 2}),
    "logprobs": Case(num_logprobs=21),
    "overload": Case(script=Script(start_error=Overloaded("full"))),
    "lost on the way": Case(script=Script(tokens=FOX, error=Unavailable("lost"), num_before=2)),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_refusal_is_the_same_over_both_faces(name: str) -> None:
    whole, streamed, over = await outcomes(REFUSED[name])

    assert isinstance(whole, tuple), whole
    assert streamed == over == whole
