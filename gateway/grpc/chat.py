"""The method Chat: its request as a conversation, its choices as responses."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct

from baton.core.errors import InvalidRequest
from baton.gateway.access.api_keys import Caller
from baton.gateway.chat.choice_reader import ChoiceReader
from baton.gateway.chat.conversation import Conversation
from baton.gateway.chat.message_schema import Message, MessageFunction, MessageToolCall
from baton.gateway.chat.messages import chat_messages, message_marks
from baton.gateway.chat.plan import ChatPlan, plan_chat
from baton.gateway.chat.tool_definitions import ToolMode
from baton.gateway.grpc.answers import ResponseFiller, prompt_progress, watched
from baton.gateway.grpc.cache_control import cache_control
from baton.gateway.grpc.options import FIELD_BY_OPTION, output_rule, sampling_options
from baton.gateway.grpc.tools import tool_use_of
from baton.gateway.output.pieces import CallStart, Content, Piece, Reasoning
from baton.gateway.requests.call_span import named_call
from baton.gateway.requests.completion_request import CompletionRequest
from baton.gateway.requests.gateway import Gateway
from baton.gateway.requests.generations.choices import ChoiceDelta
from baton.gateway.requests.generations.prompt_progress import PromptProgress
from baton.gateway.requests.session_keys import session_key
from baton.gateway.text.served_model import ServedModel
from baton.proto import inference_pb2 as pb


async def chatted(
    gateway: Gateway, request: pb.ChatRequest, caller: Caller, time_left_s: float | None
) -> AsyncGenerator[pb.ChatResponse]:
    """Raises InvalidRequest before the first response."""
    order, plan = await chat_order(gateway, request, caller, time_left_s)
    completion = gateway.complete(order)
    filler = ResponseFiller(
        gateway.model, order, completion, returns_token_ids=request.return_token_ids
    )
    has_reasoning = not request.HasField("include_reasoning") or request.include_reasoning
    reading = _Reading(plan, has_reasoning=has_reasoning)
    async with aclosing(watched(gateway, order, completion)) as parts:
        async for part in parts:
            if isinstance(part, PromptProgress):
                yield filler.named(pb.ChatResponse(prompt_progress=prompt_progress(part)))
                continue
            response = reading.response(part)
            reason = reading.finish_reason(part)
            num_reasoning = reading.num_reasoning_tokens
            if filler.filled(response, part, reason, num_reasoning=num_reasoning) is not None:
                yield response


async def chat_order(
    gateway: Gateway, request: pb.ChatRequest, caller: Caller, time_left_s: float | None
) -> tuple[CompletionRequest, ChatPlan]:
    """Raises InvalidRequest."""
    adapter = gateway.check_model(request.model, caller)
    options = sampling_options(request.sampling)
    plan = await plan_chat(gateway, conversation_of(request, gateway.model), caller.parking)
    order = CompletionRequest(
        request_id=named_call(caller.call, request.request_id),
        prompts=(plan.prompt,),
        options=options,
        grammar=plan.grammar,
        field_by_option=FIELD_BY_OPTION,
        shown_special=plan.shown_special,
        session=session_key(("session_id", request.session_id)),
        returns_progress=request.return_progress,
        adapter=adapter,
        cache_salt=request.cache_salt,
        caller=caller,
        time_left_s=time_left_s,
    )
    return order, plan


def conversation_of(request: pb.ChatRequest, model: ServedModel) -> Conversation:
    """Raises InvalidRequest."""
    tools = tool_use_of(request)
    template = model.require_chat_template(has_tools=tools.mode is not ToolMode.NONE)
    messages = [_message(message) for message in request.messages]
    return Conversation(
        messages=chat_messages(messages, has_text_arguments=template.has_text_arguments),
        marks=message_marks(messages, cache_control(request)),
        template=template,
        tools=tools,
        rule=output_rule(request.sampling),
        variables=_variables(request.chat_template_kwargs),
        adds_special_tokens=request.add_special_tokens,
        ignores_eos=request.sampling.ignore_eos,
    )


class _Reading:
    """Parsers of the choices of one request."""

    def __init__(self, plan: ChatPlan, *, has_reasoning: bool) -> None:
        self._plan = plan
        self._has_reasoning = has_reasoning
        self._reader_by_index: dict[int, ChoiceReader] = {}

    @property
    def num_reasoning_tokens(self) -> int:
        return sum(reader.num_reasoning_tokens for reader in self._reader_by_index.values())

    def response(self, part: ChoiceDelta) -> pb.ChatResponse:
        reader = self._reader_by_index.get(part.index)
        if reader is None:
            reader = self._reader_by_index[part.index] = ChoiceReader(
                self._plan.new_parser(part.index)
            )
        response = _of_pieces(reader.read(part.delta))
        if not self._has_reasoning:
            response.ClearField("reasoning")
        return response

    def finish_reason(self, part: ChoiceDelta) -> str | None:
        """The finish reason, given all of the choice so far."""
        return self._reader_by_index[part.index].finish_reason(part.delta)


def _of_pieces(pieces: Iterable[Piece]) -> pb.ChatResponse:
    response = pb.ChatResponse()
    for piece in pieces:
        if isinstance(piece, Content):
            response.content += piece.text
        elif isinstance(piece, Reasoning):
            response.reasoning += piece.text
        elif isinstance(piece, CallStart):
            response.tool_calls.add(index=piece.index, id=piece.id, name=piece.name)
        elif response.tool_calls and response.tool_calls[-1].index == piece.index:
            response.tool_calls[-1].arguments += piece.text
        else:
            response.tool_calls.add(index=piece.index, arguments=piece.text)
    return response


def _message(message: pb.ChatMessage) -> Message:
    """An empty string means not set, except for a content without tool calls."""
    calls = [
        MessageToolCall(
            id=call.id or None,
            function=MessageFunction(name=call.name, arguments=call.arguments or None),
        )
        for call in message.tool_calls
    ]
    has_content = bool(message.content) or (message.HasField("content") and not calls)
    return Message(
        role=message.role,
        content=message.content if has_content else None,
        name=message.name or None,
        tool_calls=calls or None,
        tool_call_id=message.tool_call_id or None,
        reasoning_content=message.reasoning or None,
        cache_control=cache_control(message),
    )


def _variables(given: Struct) -> Any:
    """Raises InvalidRequest."""
    try:
        return _whole_numbers(MessageToDict(given))
    except ValueError as error:  # a number that JSON does not have
        field = "chat_template_kwargs"
        raise InvalidRequest(f"{field} has NaN or Infinity; leave it out", field=field) from error


def _whole_numbers(value: Any) -> Any:
    """Numbers of a protobuf Struct are all floating: 3 arrives as 3.0, and a template would print
    it so."""
    if isinstance(value, dict):
        return {name: _whole_numbers(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
