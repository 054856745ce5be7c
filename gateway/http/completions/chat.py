"""POST /v1/chat/completions"""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request

from baton.core.errors import InvalidRequest
from baton.gateway.chat.conversation import Conversation
from baton.gateway.chat.messages import chat_messages, message_marks
from baton.gateway.chat.plan import ChatPlan, plan_chat
from baton.gateway.chat.tool_definitions import ToolMode
from baton.gateway.http.completions.chat_format import ChatFormat
from baton.gateway.http.completions.common_fields import (
    RequestContext,
    answer_extras,
    answered_id,
    check_open_end,
    request_context,
    shown_special,
)
from baton.gateway.http.completions.legacy_functions import offered_tools, with_tool_calls
from baton.gateway.http.completions.openai_writer import OpenAiWriter
from baton.gateway.http.completions.schemas import ChatBody
from baton.gateway.http.completions.template_switches import (
    chat_switches,
    template_variables,
    with_documents,
)
from baton.gateway.http.completions.tool_format import report_format
from baton.gateway.http.hosted_tools import OPENAIS, without_hosted
from baton.gateway.http.remedies import refuse_fields
from baton.gateway.http.sending.responder import Progress, Responder
from baton.gateway.http.unknown_fields import note_without_effect, read_known
from baton.gateway.requests.completion_request import CompletionRequest
from baton.gateway.requests.gateway import Gateway
from baton.gateway.requests.options import SamplingOptions, options_from
from baton.gateway.requests.prompts import truncated
from baton.gateway.text.chat_template import ChatTemplate


class ChatApi:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def create(self, request: Request) -> Responder:
        gateway = self._gateway
        body = await read_known(request, gateway.config, ChatBody)
        body.tools = without_hosted(request, gateway.config, body.tools, OPENAIS)
        if gateway.config.hosted_tools == "ignore" and body.web_search_options is not None:
            body.web_search_options = None
            request.state.ignored_fields.append("web_search_options")
        extras = answer_extras(request, body)
        who = request_context(request, is_resumable=bool(body.resumable))
        public_id = answered_id(body, who)
        order, plan = await chat_order(gateway, body, who)
        without_effect = fields_without_effect(body, plan.template)
        note_without_effect(request, gateway.config, (*without_effect, *plan.unheld_fields))
        report_format(request, plan, gateway.model)
        completion = gateway.complete(order)
        chunks = ChatFormat(
            id=f"chatcmpl-{public_id}",
            created=who.created,
            tokenizer=gateway.model.tokenizer,
            model=gateway.model.named(order.adapter),
            body=body,
            plan=plan,
            prompt=order.prompts[0],
        )
        writer = OpenAiWriter(completion, chunks, extras)
        current = partial(gateway.dispatcher.progress, completion.first_generation)
        progress = Progress(current, writer.progress) if order.returns_progress else None
        return Responder(
            completion,
            writer,
            is_streamed=bool(body.stream),
            is_resumable=bool(body.resumable),
            progress=progress,
        )


async def chat_order(
    gateway: Gateway, body: ChatBody, who: RequestContext
) -> tuple[CompletionRequest, ChatPlan]:
    """Raises InvalidRequest."""
    adapter = gateway.check_model(body.model, who.caller)
    refuse_fields(body)
    options = _options(body)
    plan = await plan_chat(gateway, conversation_of(body, gateway), who.caller.parking)
    order = CompletionRequest(
        request_id=who.request_id,
        prompts=(truncated(plan.prompt, body.truncate_prompt_tokens, gateway, options),),
        options=options,
        grammar=plan.grammar,
        is_streamed=bool(body.stream),
        field_by_option={"logprobs": "top_logprobs", "max_tokens": body.max_name},
        shown_special=shown_special(body, gateway.model, plan.shown_special),
        includes_stop=bool(body.include_stop_str_in_output),
        adapter=adapter,
        cache_salt=body.cache_salt or "",
        session=who.session(body.prompt_cache_key),
        returns_progress=bool(body.return_progress),
        caller=who.caller,
    )
    return order, plan


def conversation_of(body: ChatBody, gateway: Gateway) -> Conversation:
    """Raises InvalidRequest."""
    tools = offered_tools(body)
    template = _template(body, gateway, has_tools=tools.mode is not ToolMode.NONE)
    variables, _ = _variables(body, template)
    check_open_end(body)
    has_text_arguments = template.has_text_arguments
    messages = with_tool_calls(body.messages, has_text_arguments=has_text_arguments)
    return Conversation(
        messages=chat_messages(messages, has_text_arguments=has_text_arguments),
        marks=message_marks(body.messages, body.cache_control),
        template=template,
        tools=tools,
        rule=body.rule(),
        variables=with_documents(variables, body.documents, template.source),
        is_continued=bool(body.continue_final_message),
        adds_generation_prompt=body.add_generation_prompt is not False,
        adds_special_tokens=bool(body.add_special_tokens),
        ignores_eos=bool(body.ignore_eos),
    )


def fields_without_effect(body: ChatBody, template: ChatTemplate) -> tuple[str, ...]:
    """Fields for which the template has no variable. Raises InvalidRequest."""
    return _variables(body, template)[1]


def _variables(body: ChatBody, template: ChatTemplate) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The template's variables, and the fields for which it has none. Raises InvalidRequest."""
    return template_variables(chat_switches(body), body.chat_template_kwargs, template.source)


def _template(body: ChatBody, gateway: Gateway, *, has_tools: bool) -> ChatTemplate:
    """The model's chat template, or the one that the request asks for. Raises InvalidRequest."""
    if not body.chat_template:
        return gateway.model.require_chat_template(has_tools=has_tools)
    gateway.model.check_generates()
    is_trusted = gateway.config.trust_request_chat_template
    return gateway.model.chat_templates.asked_for(body.chat_template, is_trusted=is_trusted)


def _options(body: ChatBody) -> SamplingOptions:
    if body.echo:
        raise InvalidRequest(
            "echo is not supported in a chat; use continue_final_message", field="echo"
        )
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true", field="top_logprobs")
    return options_from(
        body,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        max_tokens=getattr(body, body.max_name),
    )
