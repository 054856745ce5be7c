"""POST /v1/completions"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec import UNSET
from starlette.requests import Request

from baton.gateway.http.completions.answers import (
    CompletionAnswer,
    CompletionChoice,
    UsageAnswer,
    usage_answer,
)
from baton.gateway.http.completions.common_fields import (
    RequestContext,
    answer_extras,
    answered_id,
    request_context,
    shown_special,
)
from baton.gateway.http.completions.logprobs import (
    completion_logprobs,
    prompt_logprobs,
    token_names,
)
from baton.gateway.http.completions.openai_writer import OpenAiWriter
from baton.gateway.http.completions.schemas import CompletionBody
from baton.gateway.http.remedies import refuse_fields
from baton.gateway.http.sending.responder import Progress, Responder
from baton.gateway.http.unknown_fields import read_known
from baton.gateway.requests.completion_request import CompletionRequest, Prompt
from baton.gateway.requests.gateway import Gateway
from baton.gateway.requests.generations.choices import ChoiceDelta
from baton.gateway.requests.generations.completion_stream import Usage
from baton.gateway.requests.options import options_from
from baton.gateway.requests.prompts import read_prompts, truncated, with_cache_point
from baton.gateway.text.tokenizer import TextTokenizer

DEFAULT_MAX_TOKENS = 16


class CompletionsApi:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def create(self, request: Request) -> Responder:
        gateway = self._gateway
        body = await read_known(request, gateway.config, CompletionBody)
        extras = answer_extras(request, body)
        who = request_context(request, is_resumable=bool(body.resumable))
        public_id = answered_id(body, who)
        order = await completion_order(gateway, body, who)
        completion = gateway.complete(order)
        chunks = CompletionFormat(
            id=f"cmpl-{public_id}",
            created=who.created,
            tokenizer=gateway.model.tokenizer,
            model=gateway.model.named(order.adapter),
            body=body,
            prompts=order.prompts,
            choices_per_prompt=completion.choices_per_prompt,
        )
        writer = OpenAiWriter(completion, chunks, extras)
        current = partial(gateway.dispatcher.progress, completion.first_generation)
        progress = Progress(current, writer.progress) if order.returns_progress else None
        return Responder(
            completion,
            writer,
            is_streamed=order.is_streamed,
            is_resumable=bool(body.resumable),
            progress=progress,
        )


async def completion_order(
    gateway: Gateway, body: CompletionBody, who: RequestContext
) -> CompletionRequest:
    """Raises InvalidRequest."""
    adapter = gateway.check_model(body.model, who.caller)
    refuse_fields(body)
    prompts = await read_prompts(
        gateway,
        body.prompt,
        "prompt",
        adds_special=body.add_special_tokens is not False,
        max_prompts=gateway.config.max_choices,
    )
    max_tokens = getattr(body, body.max_name)
    options = options_from(body, logprobs=body.logprobs, max_tokens=max_tokens)
    prompts = tuple(
        truncated(prompt, body.truncate_prompt_tokens, gateway, options) for prompt in prompts
    )
    return CompletionRequest(
        request_id=who.request_id,
        prompts=with_cache_point(prompts, body.cache_control),
        options=options,
        grammar=await gateway.grammars.accept(body.rule()),
        has_echo=bool(body.echo),
        shown_special=shown_special(body, gateway.model),
        includes_stop=bool(body.include_stop_str_in_output),
        is_streamed=bool(body.stream),
        field_by_option={"max_tokens": body.max_name},
        default_max_tokens=DEFAULT_MAX_TOKENS,
        adapter=adapter,
        cache_salt=body.cache_salt or "",
        session=who.session(body.prompt_cache_key),
        returns_progress=bool(body.return_progress),
        caller=who.caller,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionFormat:
    id: str
    created: int
    tokenizer: TextTokenizer
    model: str
    """Its name, or the adapter's."""
    body: CompletionBody
    prompts: Sequence[Prompt]
    choices_per_prompt: int

    def whole(self, choices: Sequence[ChoiceDelta]) -> CompletionAnswer:
        answer = self.closing()
        answer.choices = [self._choice(part) for part in choices]
        return answer

    def opening(self, num_choices: int) -> Iterable[CompletionAnswer]:
        return ()

    def chunk(self, part: ChoiceDelta) -> CompletionAnswer | None:
        delta = part.delta
        has_tokens = self.body.return_token_ids and delta.tokens
        has_news = delta.text or delta.logprobs or has_tokens or delta.finish_reason is not None
        if not has_news and not part.is_first:
            return None
        answer = self.closing()
        answer.choices = (self._choice(part),)
        return answer

    def usage(self, usage: Usage) -> UsageAnswer:
        return usage_answer(usage)

    def waiting(self) -> CompletionAnswer:
        answer = self.closing()
        answer.choices = (CompletionChoice(text="", logprobs=None, finish_reason=None),)
        return answer

    def closing(self) -> CompletionAnswer:
        return CompletionAnswer(
            id=self.id, object="text_completion", created=self.created, model=self.model
        )

    def _choice(self, part: ChoiceDelta) -> CompletionChoice:
        body, delta = self.body, part.delta
        tokenizer = token_names(self.tokenizer, by_id=body.return_tokens_as_token_ids)
        choice = CompletionChoice(
            index=part.index,
            text=delta.text,
            logprobs=(
                None
                if body.logprobs is None
                else completion_logprobs(delta, tokenizer, body.logprobs)
            ),
            finish_reason=delta.finish_reason,
        )
        if body.prompt_logprobs is not None and part.is_first:
            choice.prompt_logprobs = prompt_logprobs(delta, tokenizer, body.prompt_logprobs)
        if body.return_token_ids:
            prompt = self.prompts[part.index // self.choices_per_prompt]
            choice.token_ids = delta.tokens
            choice.prompt_token_ids = prompt.tokens if part.is_first else UNSET
        return choice
