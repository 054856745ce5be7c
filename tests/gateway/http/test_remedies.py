"""What changes an answer is had by a body, or refused by it with its own name for the same."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.gateway.chat_models import USER

from baton.core.errors import InvalidRequest
from baton.gateway.http.completions.schemas import ChatBody, CompletionBody
from baton.gateway.http.embeddings import EmbeddingBody
from baton.gateway.http.messages.schemas import MessagesBody
from baton.gateway.http.responses.schemas import ResponsesBody
from baton.gateway.http.scoring.classify import ClassifyBody
from baton.gateway.http.scoring.scores import RerankBody, ScoreBody
from baton.gateway.http.unknown_fields import decode_known
from baton.gateway.requests.unsupported import IGNORED, LABEL, marked_fields

Bodies = dict[type[msgspec.Struct], dict[str, Any]]
TEXT: Bodies = {
    CompletionBody: {"prompt": "x"},
    ChatBody: {"messages": USER},
    ResponsesBody: {"input": "x"},
    MessagesBody: {"messages": USER, "max_tokens": 5},
}
VECTORS: Bodies = {
    EmbeddingBody: {"input": "x"},
    ClassifyBody: {"input": "x"},
    ScoreBody: {"text_1": "x", "text_2": "y"},
    RerankBody: {"query": "x", "documents": ["y"]},
}
OF_ALL_TEXT = {"stream_options", "metadata", "user", "store"}
"""Usage is always told where there are no such options; the rest is of the caller's own books."""
OF_NO_NUMBER = {
    *("encoding_format", "return_documents", "activation", "softmax", "user"),
    *("text_1", "text_2", "queries", "query", "documents"),
}
"""How vectors are written, what the caller has, older names, and what each path must have."""


@pytest.mark.parametrize(
    ("family", "others"), [(TEXT, OF_ALL_TEXT), (VECTORS, OF_NO_NUMBER)], ids=["text", "vectors"]
)
def test_what_one_body_acts_on_each_other_has_or_refuses(family: Bodies, others: set[str]) -> None:
    acted_on = {name for kind in family for name in acting_fields(kind)} - others

    passed = [
        (kind.__name__, name)
        for kind, body in family.items()
        for name in sorted(acted_on - {*kind.__struct_fields__})
        if refusal(kind, {**body, name: "meant"}) is None
    ]

    assert passed == [] and len(acted_on) > 10


def acting_fields(kind: type[msgspec.Struct]) -> set[str]:
    idle = {*marked_fields(kind, IGNORED), *marked_fields(kind, LABEL)}
    return {*kind.__struct_fields__} - idle


def refusal(kind: type[msgspec.Struct], body: dict[str, Any]) -> str | None:
    """None: it is read, and its fields that are unknown are left out."""
    try:
        decode_known(msgspec.json.encode(body), kind)
    except InvalidRequest as error:
        assert error.field in body
        return error.message
    return None


@pytest.mark.parametrize(
    ("kind", "fields", "remedy"),
    [
        (ResponsesBody, {"response_format": {"type": "json_object"}}, "use text.format"),
        (ResponsesBody, {"max_completion_tokens": 5}, "use max_output_tokens"),
        (ResponsesBody, {"reasoning_effort": "low"}, "use reasoning.effort"),
        (ResponsesBody, {"logprobs": True}, "use top_logprobs"),
        (ResponsesBody, {"messages": USER}, "use input, or /v1/chat/completions"),
        (CompletionBody, {"max_output_tokens": 50}, "use max_tokens"),
        (CompletionBody, {"tools": [{}]}, "use /v1/chat/completions"),
        (CompletionBody, {"thinking_token_budget": 5}, "use max_tokens"),
        (ChatBody, {"max_output_tokens": 5}, "use max_tokens"),
        (ChatBody, {"instructions": "x"}, "role system"),
        (ChatBody, {"text": {"format": {"type": "json_object"}}}, "use response_format"),
        (ChatBody, {"container": "x"}, "as tools"),
        (MessagesBody, {"max_completion_tokens": 5}, "use max_tokens"),
        (MessagesBody, {"reasoning": {"effort": "low"}}, "use thinking"),
        (MessagesBody, {"include_reasoning": False}, "use thinking.display"),
        (MessagesBody, {"guided_whitespace_pattern": " "}, "structured_outputs.regex"),
        (EmbeddingBody, {"max_length": 5}, "use truncate_prompt_tokens"),
        (EmbeddingBody, {"prompt_name": "query"}, "write it into the text"),
        (EmbeddingBody, {"normalized": False}, "use normalize"),
        (EmbeddingBody, {"embed_normalize": False}, "use normalize"),
        (EmbeddingBody, {"truncate": "END"}, "use truncate_prompt_tokens"),
        (ChatBody, {"think": False}, "use thinking"),
        (ChatBody, {"enable_reasoning": False}, "use thinking"),
    ],
)
def test_the_remedy_is_what_this_body_has_for_it(
    kind: type[msgspec.Struct], fields: dict[str, Any], remedy: str
) -> None:
    body = {**TEXT, **VECTORS}[kind]

    assert remedy in str(refusal(kind, {**body, **fields}))


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (CompletionBody, {"top_a": 0, "tfs_z": 1.0, "mirostat": 0, "num_beams": 1}),
        (CompletionBody, {"tools": [], "tool_choice": "none", "enable_thinking": False}),
        (ChatBody, {"background": False, "truncation": "disabled", "previous_response_id": None}),
        (ResponsesBody, {"echo": False, "logprobs": False, "response_format": {"type": "text"}}),
        (CompletionBody, {"n_probs": 0, "min_new_tokens": 0, "min_length": 0}),
        (EmbeddingBody, {"normalized": True, "embed_normalize": True}),
        (EmbeddingBody, {"truncation": False, "truncate": "NONE"}),
        (MessagesBody, {"parallel_tool_calls": True, "suffix": "", "include_reasoning": True}),
    ],
)
def test_what_asks_for_nothing_is_read_by_all(
    kind: type[msgspec.Struct], fields: dict[str, Any]
) -> None:
    body = {**TEXT, **VECTORS}[kind]
    _, ignored = decode_known(msgspec.json.encode({**body, **fields}), kind)

    assert ignored == ()


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (CompletionBody, {"repeat_last_n": 64, "samplers": ["top_k", "temperature"]}),
        (EmbeddingBody, {"input_type": "query", "task": "retrieval.query"}),
    ],
)
def test_what_changes_little_is_left_out_and_told(
    kind: type[msgspec.Struct], fields: dict[str, Any]
) -> None:
    body = {**TEXT, **VECTORS}[kind]
    _, ignored = decode_known(msgspec.json.encode({**body, **fields}), kind)

    assert {*ignored} == {*fields}
