"""What a caller says, as requests."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.client.generate_options import TARGET, generated

from baton.client.errors import InvalidRequest
from baton.client.options import ChatOptions, EmbedOptions, GenerateOptions, Prompt
from baton.client.requests import (
    STRUCTURED_FIELDS,
    chat_request,
    embed_request,
    generate_request,
    tokenize_request,
)
from baton.client.results import AssistantMessage, ToolCall
from baton.client.sampling_options import SamplingOptions
from baton.proto import inference_pb2 as pb

HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


class Described:
    """As pydantic's classes do."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return SCHEMA


def fields_of(message: Any) -> set[str]:
    return {field.name for field in message.DESCRIPTOR.fields}


def test_every_option_of_the_service_can_be_asked_for() -> None:
    sampling = fields_of(pb.SamplingOptions)
    not_options = {"text", "tokens", "prompts", "messages", "inputs", "sampling"}

    assert set(SamplingOptions.__annotations__) == sampling - {"structured_output"}
    assert set(STRUCTURED_FIELDS) == fields_of(pb.StructuredOutput)
    drawn = {*SamplingOptions.__annotations__, *STRUCTURED_FIELDS}
    for options, message, inherited in (
        (GenerateOptions, pb.GenerateRequest, drawn),
        (ChatOptions, pb.ChatRequest, drawn),
        (EmbedOptions, pb.EmbedRequest, set()),
    ):
        own = set(options.__annotations__) - inherited - {"timeout_s"}
        choice = {"tool_mode", "function"}
        assert own - {"tool_choice"} == fields_of(message) - not_options - choice


def test_the_committed_sampling_options_are_what_make_proto_generates() -> None:
    assert TARGET.read_text() == generated(), "run `make proto`"
    assert "-m tests.client.generate_options" in (TARGET.parents[1] / "Makefile").read_text()


def test_options_are_sent_and_the_others_are_left_out() -> None:
    request = generate_request(
        [1, 2],
        {
            "temperature": 0,
            "stop": "END",
            "bad_words": ["a", "b"],
            "logit_bias": {5: -1.5},
            "logprobs": 0,
            "n": 3,
            "seed": 7,
            "priority": -1,
            "echo": True,
            "request_id": "mine",
            "timeout_s": 3,
        },
    )

    sampling = request.sampling
    assert list(request.tokens.ids) == [1, 2]
    assert (request.request_id, request.echo, list(sampling.stop)) == ("mine", True, ["END"])
    assert (sampling.n, sampling.seed, sampling.priority) == (3, 7, -1)
    assert dict(sampling.logit_bias) == {5: -1.5}
    assert list(sampling.bad_words) == ["a", "b"]
    assert sampling.HasField("temperature") and sampling.HasField("logprobs")
    assert not sampling.HasField("top_p") and not sampling.HasField("structured_output")


def test_an_option_of_none_is_left_out() -> None:
    assert generate_request("x", {"seed": None}) == generate_request("x", {})  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [("x", "text"), ([1, 2], "tokens"), ((1,), "tokens"), ([], "tokens"), (["x", [1]], "prompts")],
)
def test_prompts_are_text_tokens_or_several(prompt: Any, kind: str) -> None:
    assert generate_request(prompt, {}).WhichOneof("prompt") == kind


def test_several_prompts_keep_their_order_and_kind() -> None:
    several: list[Prompt] = ["x", [1, 2]]

    prompts = generate_request(several, {}).prompts.prompts

    assert (prompts[0].text, list(prompts[1].tokens.ids)) == ("x", [1, 2])


@pytest.mark.parametrize("options", [{"temprature": 1}, {"tools": []}, {"messages": []}])
def test_unknown_options_are_refused(options: Any) -> None:
    with pytest.raises(TypeError, match="unknown option"):
        generate_request("x", options)


@pytest.mark.parametrize(
    ("prompt", "options", "field"),
    [
        ("x", {"max_tokens": -1}, "sampling.max_tokens"),
        ("x", {"seed": 2**64}, "sampling.seed"),
        ("x", {"stop_token_ids": [-1]}, "sampling.stop_token_ids"),
        ("x", {"priority": 2**31}, "sampling.priority"),
        ("x", {"logit_bias": {-1: 1}}, "sampling.logit_bias"),
        ("x", {"cache_salt": "\ud800"}, "cache_salt"),
        ("\ud800", {}, "text"),
        ([-1], {}, "tokens.ids"),
        (["x", [-1]], {}, "prompts.prompts[1].tokens.ids"),
        ("x", {"regex": "a", "choice": ["b"]}, "sampling.structured_output"),
    ],
)
def test_values_that_cannot_be_sent_are_named(prompt: Any, options: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        generate_request(prompt, options)

    assert caught.value.field == field


@pytest.mark.parametrize("schema", [SCHEMA, json.dumps(SCHEMA), Described])
def test_schemas_are_mappings_text_or_classes(schema: Any) -> None:
    request = generate_request("x", {"json_schema": schema})

    assert json.loads(request.sampling.structured_output.json_schema) == SCHEMA


def test_what_is_no_schema_is_refused() -> None:
    with pytest.raises(TypeError, match="model_json_schema"):
        generate_request("x", {"json_schema": int})  # type: ignore[typeddict-item]


def test_a_choice_is_a_list() -> None:
    output = generate_request("x", {"choice": ["yes", "no"]}).sampling.structured_output

    assert list(output.choice.choices) == ["yes", "no"]


@pytest.mark.parametrize(
    "call",
    [
        {"id": "c", "name": "add", "arguments": "{}"},
        {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}},
    ],
)
def test_messages_may_carry_tool_calls_in_both_forms(call: dict[str, Any]) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [call]}

    request = chat_request([message], {})

    assert request.messages[0].tool_calls[0] == pb.ToolCall(id="c", name="add", arguments="{}")


def test_an_answer_is_a_message() -> None:
    call = ToolCall(id="c", name="add", arguments="{}")
    answer = AssistantMessage(content="x", reasoning="hm", tool_calls=(call,))

    (message,) = chat_request([answer], {}).messages

    assert (message.role, message.content, message.reasoning) == ("assistant", "x", "hm")
    assert message.tool_calls[0].name == "add"


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_tools_are_openais_or_their_functions(is_wrapped: bool) -> None:
    function = {"name": "add", "description": "sums", "parameters": SCHEMA, "strict": True}
    tool = {"type": "function", "function": function} if is_wrapped else function

    request = chat_request(HI, {"tools": [tool]})

    (sent,) = request.tools
    assert (sent.name, sent.description, sent.strict) == ("add", "sums", True)
    assert json.loads(sent.parameters) == SCHEMA


def test_a_misspelt_part_of_a_tool_is_refused() -> None:
    with pytest.raises(TypeError, match=r"tools\[0\]: unknown paramters"):
        chat_request(HI, {"tools": [{"name": "add", "paramters": {}}]})


def test_tool_choices_are_modes_or_a_function() -> None:
    function = {"type": "function", "function": {"name": "add"}}

    assert chat_request(HI, {"tool_choice": "required"}).tool_mode == pb.TOOL_MODE_REQUIRED
    assert chat_request(HI, {"tool_choice": {"name": "add"}}).function == "add"
    assert chat_request(HI, {"tool_choice": function}).function == "add"
    with pytest.raises(InvalidRequest, match="tool_choice"):
        chat_request(HI, {"tool_choice": "must"})  # type: ignore[typeddict-item]
    with pytest.raises(TypeError, match="tool_choice names no function"):
        chat_request(HI, {"tool_choice": {"type": "function"}})


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            "messages[0].content is text, not list",
        ),
        (
            [{"role": "user", "content": "a", "name": 1}],
            "messages[0] has a value of the wrong type",
        ),
        (["hi"], "messages[0] is a mapping with role and content, not str"),
        ("hi", "messages is a list of messages, not str"),
        (HI[0], "messages is a list of messages, not dict"),
        (None, "messages is a list of messages, not NoneType"),
    ],
)
def test_a_message_of_the_wrong_type_is_named(messages: Any, told: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(told)}"):
        chat_request(messages, {})


@pytest.mark.parametrize("prompt", [None, 1, b"def", {"text": "def"}])
def test_what_is_no_prompt_is_told_so(prompt: Any) -> None:
    with pytest.raises(TypeError, match="a prompt is text, a list of token ids"):
        generate_request(prompt, {})


def test_template_variables_are_any_json() -> None:
    variables = {"enable_thinking": False, "depth": 2, "names": ["a"]}

    request = chat_request(HI, {"chat_template_kwargs": variables, "include_reasoning": False})

    assert dict(request.chat_template_kwargs)["enable_thinking"] is False
    assert request.HasField("include_reasoning")


def test_a_message_that_cannot_be_sent_is_named() -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat_request([*HI, {"role": "user", "content": "\ud800"}], {})

    assert caught.value.field == "messages[1]"


def test_a_request_and_its_messages_may_have_cache_points() -> None:
    hour = {"type": "ephemeral", "ttl": "1h"}

    chat = chat_request([{**HI[0], "cache_control": hour}], {"cache_control": {"ttl": "5m"}})
    generate = generate_request("x", {"cache_control": {"type": "ephemeral"}})

    assert chat.messages[0].cache_control == pb.CacheControl(type="ephemeral", ttl="1h")
    assert chat.cache_control.ttl == "5m"
    assert generate.HasField("cache_control") and not generate.cache_control.ttl
    assert not chat_request(HI, {}).messages[0].HasField("cache_control")


@pytest.mark.parametrize("control", [{"tll": "5m"}, {"ttl": "5m", "scope": "all"}])
def test_a_misspelt_cache_point_is_refused_by_name(control: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        chat_request([{**HI[0], "cache_control": control}], {})
    assert refused.value.field == "messages[0]"
    with pytest.raises(InvalidRequest) as refused:
        generate_request("x", {"cache_control": control})
    assert refused.value.field == "cache_control"


def test_one_input_is_a_list_of_one() -> None:
    assert len(embed_request("x", {}).inputs) == len(embed_request([1, 2], {}).inputs) == 1
    assert len(embed_request(["x", "y"], {}).inputs) == 2


def test_an_unknown_pooling_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="mean or last"):
        embed_request("x", {"pooling": "max"})  # type: ignore[typeddict-item]


def test_texts_and_conversations_are_tokenised() -> None:
    text = tokenize_request("x", model="", add_special_tokens=False)
    chat = tokenize_request(HI, model="m", add_special_tokens=None)

    assert (text.text, text.HasField("add_special_tokens")) == ("x", True)
    assert (chat.chat.messages[0].content, chat.model) == ("hi", "m")
