"""POST /v1/responses, OpenAI's Responses API: a conversation, or the next turn of a stored one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from baton.core.errors import InvalidRequest
from baton.core.ids import new_request_id
from baton.gateway.access.api_keys import Caller
from baton.gateway.chat.conversation import Conversation, encode_chat, for_model, render_chat
from baton.gateway.chat.plan import plan_chat
from baton.gateway.chat.tool_definitions import ToolMode, use_of
from baton.gateway.grammars.structured_output import OutputRule, format_rule
from baton.gateway.http.completions.common_fields import (
    answered_id,
    check_open_end,
    request_context,
    shown_special,
    wants_receipt,
)
from baton.gateway.http.completions.logprobs import token_names
from baton.gateway.http.completions.template_switches import (
    Switch,
    template_variables,
    thinking_switches,
    thinking_variables,
    with_documents,
)
from baton.gateway.http.completions.tool_format import report_format
from baton.gateway.http.edge import REQUEST_ID
from baton.gateway.http.errors import json_response
from baton.gateway.http.hosted_tools import OPENAIS, without_hosted
from baton.gateway.http.remedies import refuse_fields
from baton.gateway.http.responses.answer import ID_PREFIX, InputTokensAnswer, begun_answer
from baton.gateway.http.responses.background import BackgroundResponses, BackgroundRun
from baton.gateway.http.responses.input import InputItem, input_messages
from baton.gateway.http.responses.kept import named_items
from baton.gateway.http.responses.schemas import ResponsesBody, TextFormat
from baton.gateway.http.responses.writer import AnswerTerms, ResponsesWriter
from baton.gateway.http.sending.responder import Responder
from baton.gateway.http.unknown_fields import note_without_effect, printable, read_known
from baton.gateway.requests.cache_control import checked_marks, marked
from baton.gateway.requests.completion_request import CompletionRequest, Prompt
from baton.gateway.requests.gateway import Gateway
from baton.gateway.requests.options import SamplingOptions, options_from
from baton.gateway.requests.prompts import truncated
from baton.gateway.text.chat_template import ChatTemplate
from baton.gateway.text.served_model import ServedModel

LOGPROBS = "message.output_text.logprobs"
FIELD_BY_OPTION = {"logprobs": "top_logprobs", "max_tokens": "max_output_tokens"}


class ResponsesApi:
    def __init__(self, gateway: Gateway, background: BackgroundResponses) -> None:
        self._gateway = gateway
        self._background = background
        self._kept = background.kept

    async def create(self, request: Request) -> Responder | Response:
        gateway = self._gateway
        body, adapter = await self._read(request)
        is_kept = self._is_kept(body, request.state.caller)
        options = _options(body)
        who = request_context(request, is_resumable=bool(body.resumable), is_kept=is_kept)
        public_id = answered_id(body, who)
        earlier = await self._earlier(body, who.caller.owner)
        plan = await plan_chat(
            gateway, conversation_of(body, gateway.model, earlier), who.caller.parking
        )
        report_format(request, plan, gateway.model)
        _, without_effect = _variables(body, plan.template)
        unread = _unread_includes(body)
        note_without_effect(
            request, gateway.config, (*without_effect, *plan.unheld_fields, *unread)
        )
        order = CompletionRequest(
            request_id=who.request_id,
            prompts=(truncated(plan.prompt, body.truncate_prompt_tokens, gateway, options),),
            options=options,
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
        is_named_by_client = REQUEST_ID in request.headers or body.request_id is not None
        base = new_request_id() if is_kept and is_named_by_client else public_id
        answer = begun_answer(
            body,
            gateway.model,
            adapter,
            id=f"{ID_PREFIX}{base}",
            created=who.created,
            is_kept=is_kept,
        )
        terms = AnswerTerms(
            names=token_names(gateway.model.tokenizer, by_id=body.return_tokens_as_token_ids),
            hides_reasoning=body.hides_reasoning,
            prompt_tokens=order.prompts[0].tokens if body.return_token_ids else None,
            has_receipt=wants_receipt(request, body.receipt),
        )
        writer = ResponsesWriter(completion, plan.new_parser(), answer, terms)

        given = [*earlier, *named_items(body.input, base)] if is_kept else []

        async def keep() -> None:
            writer.complete()
            answer.store = await self._kept.keep(answer, given, who.caller.owner)

        responder = Responder(
            completion,
            writer,
            is_streamed=bool(body.stream),
            is_resumable=bool(body.resumable),
            settle=keep if is_kept and not body.background else None,
        )
        if not body.background:
            return responder
        begun = json_response(answer)
        run = BackgroundRun(
            answer=answer,
            given=given,
            owner=who.caller.owner,
            work=responder.whole,
            fail=writer.fail,
        )
        await self._background.begin(run)
        return begun

    async def count_tokens(self, request: Request) -> Response:
        """Count the tokens of the prompt that such a request would have."""
        gateway = self._gateway
        body, _ = await self._read(request)
        options, earlier = _options(body), await self._earlier(body, request.state.caller.owner)
        conversation = for_model(gateway, conversation_of(body, gateway.model, earlier))
        text = render_chat(conversation)
        tokens = await encode_chat(gateway, conversation, text)
        prompt = Prompt(tokens=tokens, field="input")
        prompt = truncated(prompt, body.truncate_prompt_tokens, gateway, options)
        return json_response(InputTokensAnswer(input_tokens=len(prompt.tokens)))

    async def _read(self, request: Request) -> tuple[ResponsesBody, str]:
        """The body, and the adapter that it names. Raises InvalidRequest."""
        config = self._gateway.config
        body = await read_known(request, config, ResponsesBody)
        adapter = self._gateway.check_model(body.model, request.state.caller)
        refuse_fields(body)
        body.tools = without_hosted(request, config, body.tools, OPENAIS)
        return body, adapter

    def _is_kept(self, body: ResponsesBody, caller: Caller) -> bool:
        """Whether to store the answer; in a batch's line only if asked. Raises InvalidRequest."""
        if body.store and not self._kept.is_possible:
            raise InvalidRequest(
                "store: storage is off here (gateway.storage); leave it out, or send false",
                field="store",
            )
        if body.background:
            self._check_background(body)
        wanted = not caller.is_background if body.store is None else body.store
        return wanted and self._kept.is_possible

    def _check_background(self, body: ResponsesBody) -> None:
        """Raises InvalidRequest."""
        why = ""
        if body.stream:
            why = "excludes stream; leave one out: a stream can be resumable"
        elif body.store is False:
            why = "needs store: its response is kept until it is asked for"
        elif not self._kept.is_possible:
            why = "needs a place to keep its response, and there is none here (gateway.storage)"
        if why:
            raise InvalidRequest(f"background {why}", field="background")

    async def _earlier(self, body: ResponsesBody, owner: str) -> list[InputItem]:
        """The earlier turns, and the input with its item references resolved. Raises NotKept,
        InvalidRequest, StorageUnavailable."""
        if not isinstance(body.input, str):
            body.input = await self._kept.with_referred(body.input, owner)
        if not body.previous_response_id:
            return []
        field = "previous_response_id"
        kept = await self._background.find(body.previous_response_id, owner, field)
        if kept.is_in_progress:
            raise InvalidRequest(
                f"{field}: it is in progress; wait until it has ended", field=field
            )
        return kept.context()


def conversation_of(
    body: ResponsesBody, model: ServedModel, earlier: Sequence[InputItem] = ()
) -> Conversation:
    """`earlier` stands before its input. Raises InvalidRequest."""
    check_open_end(body)
    functions = [tool.function(f"tools[{i}]") for i, tool in enumerate(body.tools or ())]
    tools = use_of(
        functions,
        body.tool_choice,
        is_parallel=body.parallel_tool_calls,
        schema_field="parameters",
    )
    template = model.require_chat_template(has_tools=tools.mode is not ToolMode.NONE)
    messages, marks = input_messages(
        body.input,
        body.instructions,
        earlier=earlier,
        has_text_arguments=template.has_text_arguments,
    )
    if body.cache_control is not None:
        marks.append(marked(body.cache_control, "cache_control", len(messages) - 1))
    return Conversation(
        messages=messages,
        marks=checked_marks(marks),
        template=template,
        tools=tools,
        rule=_rule(body),
        variables=with_documents(_variables(body, template)[0], body.documents, template.source),
        is_continued=bool(body.continue_final_message),
        adds_generation_prompt=body.add_generation_prompt is not False,
        adds_special_tokens=bool(body.add_special_tokens),
        prompt_field="input",
        ignores_eos=bool(body.ignore_eos),
    )


def _variables(
    body: ResponsesBody, template: ChatTemplate
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The template's variables, and the fields for which it has none."""
    return template_variables(_switches(body), body.chat_template_kwargs, template.source)


def _switches(body: ResponsesBody) -> Iterator[Switch]:
    if (reasoning := body.reasoning) is not None:
        if reasoning.effort is not None:
            yield "reasoning.effort", {"reasoning_effort": reasoning.effort}
        if reasoning.enabled is not None:
            yield "reasoning.enabled", thinking_variables(reasoning.enabled, "reasoning.enabled")
        if reasoning.max_tokens is not None:
            yield "reasoning.max_tokens", {"thinking_budget": reasoning.max_tokens}
    yield from thinking_switches(body)
    if body.text is not None and body.text.verbosity is not None:
        yield "text.verbosity", {"verbosity": body.text.verbosity}


def _rule(body: ResponsesBody) -> OutputRule | None:
    wanted = (body.text and body.text.format) or TextFormat()
    form = format_rule(
        wanted.type, wanted.schema, field="text.format", schema_field="text.format.schema"
    )
    return body.output_rule_with(form, "text.format")


def _unread_includes(body: ResponsesBody) -> Iterator[str]:
    for name in dict.fromkeys(body.include or ()):
        if name != LOGPROBS:
            yield f"include[{printable(name)}]"


def _options(body: ResponsesBody) -> SamplingOptions:
    wants_logprobs = bool(body.top_logprobs) or LOGPROBS in (body.include or ())
    return options_from(
        body,
        logprobs=(body.top_logprobs or 0) if wants_logprobs else None,
        max_tokens=body.max_output_tokens,
    )
