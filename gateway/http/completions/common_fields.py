"""Fields that all generation APIs read alike: the caller, and extras of the answer."""

from __future__ import annotations

import time
from collections.abc import Set
from dataclasses import dataclass
from typing import Protocol

from starlette.requests import Request

from baton.core.errors import InvalidRequest
from baton.gateway.access.api_keys import Caller
from baton.gateway.http.completions.openai_writer import AnswerExtras
from baton.gateway.http.completions.schemas import RequestBody, StreamOptions
from baton.gateway.http.generation_body import GenerationBody
from baton.gateway.http.sending.resuming import resumption_if_any
from baton.gateway.requests.request_ids import public_request_id
from baton.gateway.requests.session_keys import session_key
from baton.gateway.text.served_model import ServedModel

SESSION_HEADER = "x-session-id"
RECEIPT_HEADER = "x-baton-receipt"
FALSE_WORDS = ("", "0", "false")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """Context of a request, known before its body is read."""

    request_id: str
    """The public request id."""
    caller: Caller
    session_id: str | None
    created: int
    """Unix seconds of its arrival, at whichever gateway."""

    def session(self, prompt_cache_key: str | None) -> str:
        """The request's session key. Raises InvalidRequest."""
        return session_key(
            (SESSION_HEADER, self.session_id), ("prompt_cache_key", prompt_cache_key)
        )


def request_context(
    request: Request, *, is_resumable: bool = False, is_kept: bool = False
) -> RequestContext:
    """`is_resumable`: the body asks for a resumable stream. `is_kept`: one gateway stores the
    answer."""
    caller, created = request.state.caller, int(time.time())
    resumption = resumption_if_any(request.scope)
    if resumption is not None:
        created = resumption.created
        if not is_kept and (is_resumable or resumption.is_wanted):
            caller = resumption.caller(caller, request.state.request_id)
    return RequestContext(
        request_id=request.state.request_id,
        caller=caller,
        session_id=request.headers.get(SESSION_HEADER),
        created=created,
    )


def answer_extras(request: Request, body: RequestBody) -> AnswerExtras:
    """Raises InvalidRequest."""
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream to be true", field="stream_options")
    if body.return_progress and not body.stream:
        raise InvalidRequest("return_progress needs stream to be true", field="return_progress")
    if body.resumable and not body.stream:
        raise InvalidRequest("resumable needs stream to be true", field="resumable")
    stream = body.stream_options or StreamOptions()
    return AnswerExtras(
        includes_usage=bool(stream.include_usage),
        includes_running_usage=bool(stream.include_usage and stream.continuous_usage_stats),
        includes_receipt=wants_receipt(request, body.receipt),
    )


def wants_receipt(request: Request, field: bool | None) -> bool:
    """Whether a receipt is asked for, by header or by a field of the body."""
    return bool(field) or request.headers.get(RECEIPT_HEADER, "").lower() not in FALSE_WORDS


def answered_id(body: GenerationBody, who: RequestContext) -> str:
    """The id from which the answer's id is made. Raises InvalidRequest."""
    if body.request_id is None:
        return who.request_id
    return public_request_id(body.request_id, field="request_id")


class OpenEnded(Protocol):
    """Fields that say how a prompt ends."""

    @property
    def continue_final_message(self) -> bool | None: ...
    @property
    def add_generation_prompt(self) -> bool | None: ...


def check_open_end(body: OpenEnded) -> None:
    """Raises InvalidRequest."""
    if body.continue_final_message and body.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt exclude each other; leave one out",
            field="continue_final_message",
        )


def shown_special(
    body: GenerationBody, model: ServedModel, for_parsers: Set[int] = frozenset()
) -> Set[int]:
    """Special tokens that are shown as text; `for_parsers`: those that the parsers need and
    remove."""
    return for_parsers if body.skip_special_tokens is not False else model.tokenizer.special
