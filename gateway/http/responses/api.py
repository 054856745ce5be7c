"""POST /v1/responses: the stateless part of OpenAI's newer API."""

from __future__ import annotations

import time

from starlette.requests import Request

from baton.gateway.chat.conversation import Conversation
from baton.gateway.chat.plan import plan_chat
from baton.gateway.chat.tool_definitions import use_of
from baton.gateway.grammars.structured_output import OutputRule, format_rule
from baton.gateway.http.common_fields import asker
from baton.gateway.http.responder import Responder
from baton.gateway.http.responses.answer import begun_answer
from baton.gateway.http.responses.input import input_messages
from baton.gateway.http.responses.schemas import ResponsesBody, TextFormat, refuse_state
from baton.gateway.http.responses.writer import ResponsesWriter
from baton.gateway.http.tool_format import tell_format
from baton.gateway.http.unknown_fields import read_known
from baton.gateway.requests.cache_control import checked_marks, marked
from baton.gateway.requests.gateway import Gateway
from baton.gateway.requests.options import SamplingOptions, options_from
from baton.gateway.requests.order import CompletionOrder
from baton.gateway.text.served_model import ServedModel

LOGPROBS = "message.output_text.logprobs"
FIELD_BY_OPTION = {"logprobs": "top_logprobs", "max_tokens": "max_output_tokens"}


class ResponsesApi:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def create(self, request: Request) -> Responder:
        gateway = self._gateway
        body = await read_known(request, gateway.config, ResponsesBody)
        gateway.model.check_name(body.model)
        refuse_state(body)
        options = _options(body)
        plan = await plan_chat(gateway, conversation_of(body, gateway.model))
        tell_format(request, plan, gateway.model)
        who = asker(request)
        order = CompletionOrder(
            request_id=who.request_id,
            prompts=(plan.prompt,),
            options=options,
            grammar=plan.grammar,
            is_streamed=bool(body.stream),
            field_by_option=FIELD_BY_OPTION,
            shown_special=plan.shown_special,
            cache_salt=body.cache_salt or "",
            session=who.session(body.prompt_cache_key),
            caller=who.caller,
        )
        completion = gateway.complete(order)
        answer = begun_answer(
            body, gateway.model, id=f"resp_{who.request_id}", created=int(time.time())
        )
        writer = ResponsesWriter(completion, plan, answer, gateway.model.tokenizer)
        return Responder(
            completion,
            writer,
            is_streamed=bool(body.stream),
            is_resumable=bool(body.resumable),
        )


def conversation_of(body: ResponsesBody, model: ServedModel) -> Conversation:
    """Raises InvalidRequest."""
    template = model.require_chat_template()
    variables = dict(body.chat_template_kwargs or {})
    if body.reasoning is not None and body.reasoning.effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning.effort)
    functions = [tool.function(f"tools[{i}]") for i, tool in enumerate(body.tools or ())]
    messages, marks = input_messages(
        body.input, body.instructions, has_text_arguments=template.has_text_arguments
    )
    if body.cache_control is not None:
        marks.append(marked(body.cache_control, "cache_control", len(messages) - 1))
    return Conversation(
        messages=messages,
        marks=checked_marks(marks),
        tools=use_of(
            functions,
            body.tool_choice,
            is_parallel=body.parallel_tool_calls,
            schema_field="parameters",
        ),
        rule=_rule(body),
        variables=variables,
        prompt_field="input",
        ignores_eos=bool(body.ignore_eos),
    )


def _rule(body: ResponsesBody) -> OutputRule | None:
    wanted = (body.text and body.text.format) or TextFormat()
    return format_rule(
        wanted.type, wanted.schema, field="text.format", schema_field="text.format.schema"
    )


def _options(body: ResponsesBody) -> SamplingOptions:
    wants_logprobs = bool(body.top_logprobs) or LOGPROBS in (body.include or ())
    return options_from(
        body,
        logprobs=(body.top_logprobs or 0) if wants_logprobs else None,
        max_tokens=body.max_output_tokens,
    )
