"""What /v1/responses refuses, by the path of what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.chat_models import (
    chat_model,
    dispatcher,
    said,
)
from tests.gateway.scripted import (
    error_of,
    serving,
)

CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "[]"}
WRONG: dict[str, dict[str, Any]] = {
    "previous_response_id": {"previous_response_id": "resp_1"},
    "conversation": {"conversation": "conv_1"},
    "background": {"background": True},
    "n": {"n": 2},
    "max_tokens": {"max_tokens": 5},
    "truncation": {"truncation": "auto"},
    "max_output_tokens": {"max_output_tokens": 0},
    "top_logprobs": {"top_logprobs": 21},
    "input": {"input": []},
    "input[0].role": {"input": [{"role": "narrator", "content": "x"}]},
    "input[0].content": {"input": [{"role": "user"}]},
    "input[0].content[0].type": {
        "input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]
    },
    "input[0].output[1].type": {
        "input": [
            {
                "type": "custom_tool_call_output",
                "call_id": "c",
                "output": [{"type": "input_text", "text": "x"}, {"type": "input_image"}],
            }
        ]
    },
    "input[0].arguments": {"input": [CALL]},
    "input[0].type": {"input": [{"type": "mcp_call"}]},
    "input[0]": {"input": [{"type": "item_reference", "id": "msg_1"}]},
    "tools[0].type": {"tools": [{"type": "web_search"}]},
    "tools[0].parameters": {
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "x"}}],
        "tool_choice": {"type": "function", "name": "f"},
    },
    "tool_choice": {"tool_choice": "required"},
    "text.format.type": {"text": {"format": {"type": "yaml"}}},
    "text.format.schema": {"text": {"format": {"type": "json_schema", "name": "x"}}},
}


NOT_KEPT = ("previous_response_id", "input[0]")


@pytest.mark.parametrize("field", WRONG)
async def test_what_is_wrong_is_named(field: str) -> None:
    body = {"input": "x", **WRONG[field]}
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model()) as gateway:
        response = await gateway.http.post("/v1/responses", json=body)

    assert response.status_code == (404 if field in NOT_KEPT else 400)
    assert error_of(response)["param"] == field


TEMPLATE_THAT_REFUSES = "{{ raise_exception('no') }}"


async def test_what_the_template_refuses_is_the_inputs_mistake() -> None:
    model = chat_model(TEMPLATE_THAT_REFUSES)
    async with serving(dispatcher=dispatcher(said("x")), model=model) as gateway:
        response = await gateway.http.post("/v1/responses", json={"input": "x"})

    assert error_of(response)["param"] == "input"
