"""Fields of a request that are wrong, or ask for what Baton cannot do."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.scripted import error_of, json_vocab_size, serving

Bodies = dict[str, list[dict[str, Any]]]


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi", **fields}]}


BAD_COMPLETIONS: Bodies = {
    "prompt": [
        {},
        {"prompt": None},
        {"prompt": ""},
        {"prompt": []},
        {"prompt": 3},
        {"prompt": ["a"] * 129},
    ],
    "prompt[0]": [{"prompt": [""]}, {"prompt": [[]]}, {"prompt": [None]}],
    "prompt[1]": [{"prompt": [1, bad]} for bad in (2.5, True, None, -1, json_vocab_size(), 10**30)],
    "temperature": [{"temperature": -1}, {"temperature": "hot"}, {"temperature": [1]}],
    "top_p": [{"top_p": 0}, {"top_p": 1.5}],
    "top_k": [{"top_k": -3}, {"top_k": 1.5}],
    "min_p": [{"min_p": 2}],
    "repetition_penalty": [{"repetition_penalty": 0}],
    "presence_penalty": [{"presence_penalty": 3}],
    "frequency_penalty": [{"frequency_penalty": -3}],
    "max_tokens": [{"max_tokens": 0}, {"max_tokens": True}, {"max_tokens": 10**30}],
    "min_tokens": [{"min_tokens": 17}],
    "stop": [{"stop": [str(i) for i in range(65)]}, {"stop": 3}],
    "stop[0]": [{"stop": ""}, {"stop": [""]}, {"stop": "a" * 257}, {"stop": [1]}],
    "stop_token_ids[0]": [{"stop_token_ids": [-1]}, {"stop_token_ids": [10**6]}],
    "logprobs": [{"logprobs": 21}, {"logprobs": -1}, {"logprobs": True}],
    "seed": [{"seed": 2**64}, {"seed": 1.5}],
    "typical_p": [{"typical_p": 0}, {"typical_p": 1.5}],
    "n": [{"n": 129}, {"n": 0}, {"n": True}],
    "best_of": [{"best_of": 2, "n": 3}, {"best_of": 2, "stream": True}],
    "echo": [{"echo": "yes"}],
    "suffix": [{"suffix": "end"}],
    "logit_bias": [
        {"logit_bias": [1]},
        {"logit_bias": {"a": 1}},
        {"logit_bias": {str(i): 1 for i in range(1025)}},
    ],
    "logit_bias[9999]": [{"logit_bias": {"9999": 1}}],
    "logit_bias[7]": [{"logit_bias": {"7": 101}}, {"logit_bias": {"7": -100.5}}],
    "allowed_token_ids[1]": [{"allowed_token_ids": [1, -1]}, {"allowed_token_ids": [1, 9999]}],
    "bad_words": [{"bad_words": "word"}, {"bad_words": ["a"] * 257}],
    "bad_words[1]": [{"bad_words": ["a", " "]}, {"bad_words": ["a", "b" * 257]}],
    "prompt_logprobs": [{"prompt_logprobs": 21}, {"prompt_logprobs": -1}],
    "priority": [{"priority": 2**31}, {"priority": -(2**31) - 1}, {"priority": "high"}],
    "stream": [{"stream": "yes"}],
    "stream_options": [{"stream_options": {}}],
    "stream_options.chunks": [{"stream": True, "stream_options": {"chunks": 1}}],
    "mesages": [{"mesages": []}],
    "cache_salt": [{"cache_salt": 5}],
}


@pytest.mark.parametrize("field", BAD_COMPLETIONS)
async def test_a_bad_field_of_a_completion_is_named(field: str) -> None:
    async with serving(unknown_fields="refuse") as gateway:
        for body in BAD_COMPLETIONS[field]:
            defaults = {} if field == "prompt" else {"prompt": "hi"}
            response = await gateway.complete(**{**defaults, **body})

            assert response.status_code == 400, body
            error = error_of(response)
            assert error["param"] == field, body
            assert error["type"] == "invalid_request_error"
    assert gateway.dispatcher.generations == []


BAD_CHATS: Bodies = {
    "messages": [{"messages": []}, {"messages": None}, {"messages": "hi"}],
    "messages[0].role": [message(role="robot"), message(role=None), {"messages": [{}]}],
    "messages[0].content": [message(content=None), message(content=5)],
    "messages[0].content[0].type": [
        message(content=[{"type": "image_url", "image_url": {"url": "http://x"}}]),
        message(content=[{"text": "hi"}]),
    ],
    "messages[0].content[0].text": [message(content=[{"type": "text"}])],
    "messages[0].tool_calls": [message(tool_calls=[{"id": "1"}])],
    "messages[0].color": [message(color="red")],
    "tools[0].function": [{"tools": [{"type": "function"}]}],
    "tool_choice": [{"tool_choice": "required"}],
    "functions": [{"functions": [{"name": "f"}], "tools": [{"type": "function"}]}],
    "functions[0]": [{"functions": [{"name": "no name"}]}],
    "function_call": [
        {"function_call": {"name": "f"}},
        {"functions": [{"name": "f"}], "function_call": {"name": "g"}},
        {"functions": [{"name": "f"}], "function_call": "f"},
    ],
    "messages[0].name": [message(role="function", content="x")],
    "messages[0].function_call": [message(function_call={"name": "f"})],
    "messages[0].function_call.arguments": [
        message(role="assistant", function_call={"name": "f", "arguments": "[]"})
    ],
    "response_format": [{"response_format": {"type": "json_object"}}],
    "modalities": [{"modalities": ["audio"]}],
    "audio": [{"audio": {}}],
    "web_search_options": [{"web_search_options": {}}],
    "reasoning_effort": [{"reasoning_effort": 3}],
    "n": [{"n": 129}],
    "top_logprobs": [{"top_logprobs": 2}, {"logprobs": True, "top_logprobs": 21}],
    "logprobs": [{"logprobs": 1}],
    "max_completion_tokens": [{"max_completion_tokens": 0}, {"max_completion_tokens": 100}],
    "max_tokens": [{"max_tokens": 100}],
    "prompt": [{"prompt": "hi"}],
    "chat_template_kwargs": [{"chat_template_kwargs": {"messages": []}}],
}


@pytest.mark.parametrize("field", BAD_CHATS)
async def test_a_bad_field_of_a_chat_is_named(field: str) -> None:
    async with serving(unknown_fields="refuse") as gateway:
        for body in BAD_CHATS[field]:
            response = await gateway.chat(**body)

            assert response.status_code == 400, body
            assert error_of(response)["param"] == field, body
    assert gateway.dispatcher.generations == []


async def test_fields_that_ask_for_nothing_are_accepted() -> None:
    async with serving() as gateway:
        completion = await gateway.complete(
            prompt="hi", n=1, best_of=1, echo=False, suffix=None, logit_bias={}, user="u",
            metadata={"a": "b"}, store=True, service_tier="auto", stop=None, stop_token_ids=None,
        )  # fmt: skip
        chat = await gateway.chat(
            n=1, tools=[], tool_choice="none", response_format={"type": "text"},
            modalities=["text"], parallel_tool_calls=True, user="u", safety_identifier="s",
            logprobs=False, top_logprobs=0,
        )  # fmt: skip

    assert (completion.status_code, chat.status_code) == (200, 200)
