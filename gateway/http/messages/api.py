"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from baton.core.errors import InvalidRequest
from baton.gateway.chat.choice_reader import ChoiceReader
from baton.gateway.chat.conversation import Conversation, encode_chat, for_model, render_chat
from baton.gateway.chat.plan import plan_chat
from baton.gateway.chat.tool_definitions import ToolMode, ToolUse, use_of
from baton.gateway.grammars.structured_output import OutputRule, format_rule
from baton.gateway.http.completions.common_fields import (
    answered_id,
    request_context,
    shown_special,
    wants_receipt,
)
from baton.gateway.http.completions.template_switches import (
    Switch,
    is_on_by_type,
    template_variables,
    thinking_variables,
    with_documents,
)
from baton.gateway.http.completions.tool_format import report_format
from baton.gateway.http.errors import json_response
from baton.gateway.http.hosted_tools import ANTHROPICS, without_hosted
from baton.gateway.http.messages.answer import TokenCountAnswer
from baton.gateway.http.messages.blocks import ThinkingShown
from baton.gateway.http.messages.input import input_messages, is_prefilled
from baton.gateway.http.messages.schemas import MessagesBody, refuse_foreign
from baton.gateway.http.messages.writer import AnswerTerms, MessagesWriter
from baton.gateway.http.sending.responder import Responder
from baton.gateway.http.unknown_fields import note_without_effect, read_known
from baton.gateway.requests.completion_request import CompletionRequest, Prompt
from baton.gateway.requests.gateway import Gateway
from baton.gateway.requests.options import SamplingOptions, options_from
from baton.gateway.requests.prompts import truncated
from baton.gateway.text.served_model import ServedModel

FIELD_BY_OPTION = {"stop": "stop_sequences"}
DISPLAYS = {
    None: ThinkingShown.ALL,
    "summarized": ThinkingShown.ALL,
    "omitted": ThinkingShown.SIGNED,
}
CHOICE_BY_TYPE = {"auto": "auto", "any": "required", "none": "none"}


class MessagesApi:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def create(self, request: Request) -> Responder:
        gateway = self._gateway
        body, adapter = await self._read(request)
        shown = _thinking_shown(body)
        who = request_context(request, is_resumable=bool(body.resumable))
        public_id = answered_id(body, who)
        plan = await plan_chat(gateway, self._conversation(request, body), who.caller.parking)
        note_without_effect(request, gateway.config, plan.unheld_fields)
        report_format(request, plan, gateway.model)
        prompt = self._truncated(plan.prompt, body)
        room = gateway.max_model_len - len(prompt.tokens)
        order = CompletionRequest(
            request_id=who.request_id,
            prompts=(prompt,),
            options=_options(body, room),
            grammar=plan.grammar,
            is_streamed=bool(body.stream),
            field_by_option=FIELD_BY_OPTION,
            shown_special=shown_special(body, gateway.model, plan.shown_special),
            includes_stop=bool(body.include_stop_str_in_output),
            adapter=adapter,
            cache_salt=body.cache_salt or "",
            session=who.session(body.prompt_cache_key),
            caller=who.caller,
        )
        completion = gateway.complete(order)
        terms = AnswerTerms(
            id=f"msg_{public_id}",
            model=gateway.model.named(adapter),
            max_tokens=body.max_tokens,
            room=room,
            thinking=shown,
            has_receipt=wants_receipt(request, body.receipt),
            prompt_tokens=prompt.tokens if body.return_token_ids else None,
        )
        writer = MessagesWriter(completion, ChoiceReader(plan.new_parser()), terms)
        return Responder(
            completion,
            writer,
            is_streamed=bool(body.stream),
            is_resumable=bool(body.resumable),
        )

    async def count_tokens(self, request: Request) -> Response:
        """Count the tokens of the prompt that such a request would have."""
        gateway = self._gateway
        body, _ = await self._read(request)
        conversation = for_model(gateway, self._conversation(request, body))
        text = render_chat(conversation)
        tokens = await encode_chat(gateway, conversation, text)
        prompt = self._truncated(Prompt(tokens=tokens, field="messages"), body)
        return json_response(TokenCountAnswer(input_tokens=len(prompt.tokens)))

    def _truncated(self, prompt: Prompt, body: MessagesBody) -> Prompt:
        return truncated(prompt, body.truncate_prompt_tokens, self._gateway, options_from(body))

    async def _read(self, request: Request) -> tuple[MessagesBody, str]:
        """The body, and the adapter that it names."""
        body = await read_known(request, self._gateway.config, MessagesBody)
        adapter = self._gateway.check_model(body.model, request.state.caller)
        refuse_foreign(body)
        body.tools = without_hosted(request, self._gateway.config, body.tools, ANTHROPICS)
        return body, adapter

    def _conversation(self, request: Request, body: MessagesBody) -> Conversation:
        """Notes the fields that have no effect. Raises InvalidRequest."""
        conversation, ignored = conversation_of(body, self._gateway.model)
        note_without_effect(request, self._gateway.config, ignored)
        return conversation


def conversation_of(body: MessagesBody, model: ServedModel) -> tuple[Conversation, tuple[str, ...]]:
    """The conversation, and the fields for which the chat template has no switch. Raises
    InvalidRequest."""
    tools = _tools(body)
    template = model.require_chat_template(has_tools=tools.mode is not ToolMode.NONE)
    messages, marks = input_messages(body, has_text_arguments=template.has_text_arguments)
    variables, ignored = template_variables(
        _switches(body, template.source), body.chat_template_kwargs, template.source
    )
    if body.thinking is None and body.enable_thinking is None:  # Anthropic's default: no thinking
        variables = {**thinking_variables(False, "thinking"), **variables}
    conversation = Conversation(
        messages=messages,
        marks=marks,
        template=template,
        tools=tools,
        rule=_rule(body),
        variables=with_documents(variables, body.documents, template.source),
        is_continued=is_prefilled(messages),
        adds_special_tokens=bool(body.add_special_tokens),
        ignores_eos=bool(body.ignore_eos),
    )
    return conversation, ignored


def _tools(body: MessagesBody) -> ToolUse:
    functions = [tool.function(f"tools[{i}]") for i, tool in enumerate(body.tools or ())]
    choice: Any = None
    is_parallel = True
    if (given := body.tool_choice) is not None:
        is_parallel = not given.disable_parallel_tool_use
        if given.type == "tool":
            choice = {"type": "function", "name": given.name}
        elif (choice := CHOICE_BY_TYPE.get(given.type)) is None:
            raise InvalidRequest(
                f"tool_choice.type is {given.type!r}; known are auto, any, tool and none",
                field="tool_choice.type",
            )
    return use_of(functions, choice, is_parallel=is_parallel, schema_field="input_schema")


def _rule(body: MessagesBody) -> OutputRule | None:
    field, wanted = "output_format", body.output_format
    if body.output_config is not None and body.output_config.format is not None:
        field, wanted = "output_config.format", body.output_config.format
    form = None
    if wanted is not None:
        form = format_rule(wanted.type, wanted.schema, field=field, schema_field=f"{field}.schema")
    return body.output_rule_with(form, field)


def _switches(body: MessagesBody, template: str) -> Iterator[Switch]:
    if body.enable_thinking is not None:
        yield "enable_thinking", thinking_variables(body.enable_thinking, "enable_thinking")
    if (thinking := body.thinking) is not None:
        is_on = is_on_by_type(thinking.type)
        yield "thinking", thinking_variables(is_on, "thinking")
        if thinking.budget_tokens is not None:
            yield "thinking.budget_tokens", {"thinking_budget": thinking.budget_tokens}
    if body.output_config is not None and (effort := body.output_config.effort) is not None:
        yield "output_config.effort", {"reasoning_effort": _effort(effort, template)}


def _effort(effort: str, template: str) -> str:
    """Templates may not know an effort above high."""
    return "high" if effort in ("xhigh", "max") and effort not in template else effort


def _thinking_shown(body: MessagesBody) -> ThinkingShown:
    thinking = body.thinking
    if thinking is None:
        return ThinkingShown.ALL if body.enable_thinking else ThinkingShown.NOTHING
    if not is_on_by_type(thinking.type):
        return ThinkingShown.NOTHING
    shown = DISPLAYS.get(thinking.display)
    if shown is None:
        raise InvalidRequest(
            f"thinking.display is {thinking.display!r}; use summarized or omitted",
            field="thinking.display",
        )
    return shown


def _options(body: MessagesBody, room: int) -> SamplingOptions:
    """`max_tokens` may exceed the rest of the context; it is cut to that."""
    max_tokens = body.max_tokens
    if max_tokens is not None and max_tokens > room > 0:
        max_tokens = room
    return options_from(body, max_tokens=max_tokens, stop=body.stop_sequences)
