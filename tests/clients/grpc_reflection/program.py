"""gRPC without generated code: messages are made of what the server's reflection tells."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc
import steps
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

SERVICE = "baton.v1.Inference"
METADATA = [("authorization", f"Bearer {steps.KEY}")]

plain = grpc.insecure_channel(steps.GRPC)


def with_key() -> Any:
    class Interceptor(grpc.UnaryStreamClientInterceptor, grpc.StreamStreamClientInterceptor):
        def _told(self, details: Any) -> Any:
            return details._replace(metadata=[*(details.metadata or ()), *METADATA])

        def intercept_unary_stream(self, go: Any, details: Any, request: Any) -> Any:
            return go(self._told(details), request)

        def intercept_stream_stream(self, go: Any, details: Any, requests: Any) -> Any:
            return go(self._told(details), requests)

    return grpc.intercept_channel(plain, Interceptor())


channel = with_key()


def chat(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    service = DescriptorPool(ProtoReflectionDescriptorDatabase(channel)).FindServiceByName(SERVICE)
    method = service.FindMethodByName("Chat")
    request = GetMessageClass(method.input_type)
    call = channel.unary_stream(
        f"/{SERVICE}/Chat",
        request_serializer=request.SerializeToString,
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    for response in call(ParseDict({"model": steps.MODEL, **body}, request())):
        yield MessageToDict(response, preserving_proto_field_name=True)


def deltas() -> list[str]:
    asked = {"messages": [{"role": "user", "content": steps.QUESTION}]}
    return [r["content"] for r in chat(asked) if r.get("content")]


def tools() -> str:
    function = steps.OPENAI_TOOL["function"]
    offered = [{**function, "parameters": json.dumps(function["parameters"])}]
    messages: list[Any] = [{"role": "user", "content": steps.WEATHER_QUESTION}]
    while True:
        said, calls = "", []
        for response in chat({"messages": messages, "tools": offered}):
            said += response.get("content", "")
            for delta in response.get("tool_calls", ()):
                if delta.get("id"):
                    calls.append({"id": delta["id"], "name": delta["name"], "arguments": ""})
                calls[-1]["arguments"] += delta.get("arguments", "")
        if not calls:
            return said
        messages.append({"role": "assistant", "content": said, "tool_calls": calls})
        for call in calls:
            told = steps.get_weather(**json.loads(call["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": told})


steps.run(answer=lambda: "".join(deltas()), stream=deltas, tools=tools)
