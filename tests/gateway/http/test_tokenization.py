"""Text to tokens and back, over HTTP and gRPC."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.chat_models import HERMES, WEATHER, chat_model, dispatcher, said
from tests.gateway.scripted import (
    ASSISTANT,
    BOS,
    USER,
    error_of,
    serving,
    text_tokenizer,
    tokens_of,
)

from baton.proto import inference_pb2 as pb
from baton.proto.inference_pb2_grpc import InferenceStub

CHAT = list(text_tokenizer().encode(f"{BOS}{USER}hi{ASSISTANT}", add_special_tokens=False))


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_a_prompt_is_tokenised_as_a_completion_would(prefix: str) -> None:
    async with serving() as gateway:
        body = {"prompt": "fox €", "return_token_strs": True}
        answer = (await gateway.http.post(f"{prefix}/tokenize", json=body)).json()
        await gateway.complete(prompt="fox €")

    assert answer["tokens"] == list(gateway.dispatcher.generations[0].prompt)
    assert answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] == 100
    assert answer["token_strs"][:2] == ["<s>", "fo"]
    assert answer["token_strs"][-1].startswith("bytes:")


async def test_special_tokens_can_be_left_away() -> None:
    async with serving() as gateway:
        body = {"prompt": "fox", "add_special_tokens": False}
        answer = (await gateway.http.post("/tokenize", json=body)).json()

    assert answer["tokens"] == tokens_of("fox")
    assert answer["token_strs"] is None


async def test_a_chat_is_tokenised_as_it_would_be_answered() -> None:
    messages = [{"role": "user", "content": "hi"}]
    async with serving() as gateway:
        answer = (await gateway.http.post("/tokenize", json={"messages": messages})).json()
        body = {"messages": messages, "add_generation_prompt": False}
        closed = (await gateway.http.post("/tokenize", json=body)).json()
        await gateway.chat("hi")

    assert answer["tokens"] == CHAT == list(gateway.dispatcher.generations[0].prompt)
    assert closed["tokens"] == CHAT[:-1]


@pytest.mark.parametrize(
    "switches",
    [
        {"enable_thinking": False},
        {"thinking": {"type": "enabled"}, "reasoning_effort": "low"},
        {"tools": [WEATHER], "tool_choice": "none"},
        {"tools": [WEATHER], "reasoning": {"enabled": False}},
    ],
)
async def test_a_chat_with_switches_is_tokenised_as_it_would_be_answered(
    switches: dict[str, Any],
) -> None:
    template = HERMES + "{{ enable_thinking }}{{ reasoning_effort }}"
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model(template)) as gateway:
        body = {"messages": [{"role": "user", "content": "hi"}], **switches}
        counted = await gateway.http.post("/tokenize", json=body)
        await gateway.http.post("/v1/chat/completions", json=body)

    assert "x-baton-ignored" not in counted.headers
    assert counted.json()["tokens"] == list(gateway.dispatcher.generations[0].prompt)


async def test_tokens_become_text_with_special_ones_by_name() -> None:
    async with serving() as gateway:
        answer = (await gateway.http.post("/detokenize", json={"tokens": CHAT})).json()

    assert answer == {"prompt": f"{BOS}{USER}hi{ASSISTANT}"}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [1, 10**6]}, "tokens[1]"),
        ("/detokenize", {"tokens": [1], "model": "gpt-9"}, "model"),
    ],
)
async def test_a_bad_field_is_named(path: str, body: dict[str, Any], field: str) -> None:
    async with serving() as gateway:
        response = await gateway.http.post(path, json=body)

    assert response.status_code in (400, 404)
    assert error_of(response)["param"] == field


async def test_a_key_is_needed_where_keys_are() -> None:
    async with serving(api_keys=frozenset({"key"})) as gateway:
        paths = ("/tokenize", "/detokenize", "/v1/tokenize", "/v1/embeddings")
        answers = [await gateway.http.post(path, json={}) for path in paths]

    assert [answer.status_code for answer in answers] == [401] * 4


async def test_grpc_tokenises_alike() -> None:
    chat = pb.ChatRequest(messages=[pb.ChatMessage(role="user", content="hi")])
    async with serving() as gateway, grpc.aio.insecure_channel(gateway.grpc_target) as channel:
        stub = InferenceStub(channel)
        of_text = await stub.Tokenize(pb.TokenizeRequest(text="fox €"))
        of_chat = await stub.Tokenize(pb.TokenizeRequest(chat=chat))
        back = await stub.Detokenize(pb.DetokenizeRequest(ids=of_text.ids))
        with pytest.raises(grpc.aio.AioRpcError, match="text and chat"):
            await stub.Tokenize(pb.TokenizeRequest())
        with pytest.raises(grpc.aio.AioRpcError, match=r"ids\[0\]"):
            await stub.Detokenize(pb.DetokenizeRequest(ids=[10**6]))

    assert list(of_text.ids) == list(text_tokenizer().encode("fox €", add_special_tokens=True))
    assert b"".join(of_text.tokens) == f"{BOS}fox €".encode()
    assert of_text.max_model_len == 100
    assert list(of_chat.ids) == CHAT
    assert back.text == f"{BOS}fox €"


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_text_survives_the_way_there_and_back(text: str) -> None:
    tokenizer = text_tokenizer()

    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
