"""POST /v1/completions"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET
from starlette.requests import Request

from baton.core.errors import InvalidRequest
from baton.platform.gateway.answers import Answer, CompletionChoice
from baton.platform.gateway.common_fields import answer_options, sampling_options
from baton.platform.gateway.gateway import CompletionOrder, Gateway
from baton.platform.gateway.logprobs import completion_logprobs
from baton.platform.gateway.request_body import decode_body, read_body
from baton.platform.gateway.request_ids import unique_request_id
from baton.platform.gateway.responder import Responder
from baton.platform.gateway.schemas import CompletionBody, refuse_unsupported
from baton.platform.gateway.served_model import ServedModel
from baton.platform.gateway.text.output_text import TextDelta

DEFAULT_MAX_TOKENS = 16
FIELD_BY_OPTION = {"num_logprobs": "logprobs"}


class CompletionsApi:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def create(self, request: Request) -> Responder:
        gateway = self._gateway
        data = await read_body(request, gateway.config)
        body = decode_body(data, CompletionBody)
        gateway.model.check_name(body.model)
        refuse_unsupported(body)
        options = answer_options(request, body)
        prompt = await self._prompt(body)
        public_id: str = request.state.request_id
        order = CompletionOrder(
            request_id=unique_request_id(public_id),
            prompt=prompt,
            options=sampling_options(body, num_logprobs=body.logprobs, max_tokens=body.max_tokens),
            default_max_tokens=DEFAULT_MAX_TOKENS,
            field_by_option=FIELD_BY_OPTION,
            cache_salt=body.cache_salt or "",
        )
        stream = gateway.complete(order)
        answer_format = CompletionFormat(
            id=f"cmpl-{public_id}",
            created=int(time.time()),
            model=gateway.model,
            wants_logprobs=body.logprobs is not None,
            prompt_token_ids=prompt if body.return_token_ids else None,
        )
        return Responder(stream, answer_format, options)

    async def _prompt(self, body: CompletionBody) -> tuple[int, ...]:
        prompt = body.prompt
        if prompt is None:
            raise InvalidRequest("prompt is missing", field="prompt")
        if not prompt:
            raise InvalidRequest("prompt is empty; it needs at least one token", field="prompt")
        if isinstance(prompt, str):
            adds = body.add_special_tokens is not False
            return await self._gateway.encode(
                prompt, add_special_tokens=adds, prompt_field="prompt"
            )
        # More of them are refused for their number.
        for index, token in enumerate(prompt[: self._gateway.max_model_len]):
            if isinstance(token, str | list):
                raise InvalidRequest(
                    "prompt with several prompts is not supported yet; send one request each",
                    field="prompt",
                )
            if type(token) is not int:
                field = f"prompt[{index}]"
                raise InvalidRequest(f"{field} must be a token id", field=field)
        return tuple(prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionFormat:
    id: str
    created: int
    model: ServedModel
    wants_logprobs: bool
    prompt_token_ids: Sequence[int] | None
    """Set if token ids were asked for."""

    def whole(self, delta: TextDelta) -> Answer:
        return self.chunk(delta, is_first=True)

    def chunk(self, delta: TextDelta, *, is_first: bool) -> Answer:
        choice = CompletionChoice(
            text=delta.text,
            logprobs=(
                completion_logprobs(delta, self.model.tokenizer) if self.wants_logprobs else None
            ),
            finish_reason=delta.finish_reason,
        )
        if self.prompt_token_ids is not None:
            choice.token_ids = delta.tokens
            choice.prompt_token_ids = self.prompt_token_ids if is_first else UNSET
        answer = self.closing()
        answer.choices = (choice,)
        return answer

    def closing(self) -> Answer:
        return Answer(
            id=self.id, object="text_completion", created=self.created, model=self.model.name
        )
