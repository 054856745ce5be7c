"""What /v1/completions and /v1/chat/completions read alike."""

from __future__ import annotations

from starlette.requests import Request

from baton.core.errors import InvalidRequest
from baton.platform.gateway.responder import AnswerOptions
from baton.platform.gateway.sampling_options import SamplingOptions
from baton.platform.gateway.schemas import RequestBody

RECEIPT_HEADER = "x-baton-receipt"
FALSE_WORDS = ("", "0", "false")


def answer_options(request: Request, body: RequestBody) -> AnswerOptions:
    """Raises InvalidRequest."""
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream to be true", field="stream_options")
    header = request.headers.get(RECEIPT_HEADER, "").lower()
    return AnswerOptions(
        is_streamed=bool(body.stream),
        includes_usage=bool(body.stream_options and body.stream_options.include_usage),
        includes_receipt=bool(body.receipt) or header not in FALSE_WORDS,
    )


def sampling_options(
    body: RequestBody, *, num_logprobs: int | None, max_tokens: int | None
) -> SamplingOptions:
    stop = body.stop
    return SamplingOptions(
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        max_tokens=max_tokens,
        min_tokens=body.min_tokens,
        stop=(stop,) if isinstance(stop, str) else stop or (),
        stop_token_ids=body.stop_token_ids or (),
        ignore_eos=body.ignore_eos,
        num_logprobs=num_logprobs,
        seed=body.seed,
    )
