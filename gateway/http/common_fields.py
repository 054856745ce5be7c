"""What /v1/completions and /v1/chat/completions read alike."""

from __future__ import annotations

from starlette.requests import Request

from baton.core.errors import InvalidRequest
from baton.gateway.http.openai_writer import AnswerExtras
from baton.gateway.http.schemas import RequestBody, StreamOptions

RECEIPT_HEADER = "x-baton-receipt"
FALSE_WORDS = ("", "0", "false")


def answer_extras(request: Request, body: RequestBody) -> AnswerExtras:
    """Raises InvalidRequest."""
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream to be true", field="stream_options")
    if body.resumable and not body.stream:
        raise InvalidRequest("resumable needs stream to be true", field="resumable")
    header = request.headers.get(RECEIPT_HEADER, "").lower()
    stream = body.stream_options or StreamOptions()
    return AnswerExtras(
        includes_usage=bool(stream.include_usage),
        includes_running_usage=bool(stream.include_usage and stream.continuous_usage_stats),
        includes_receipt=bool(body.receipt) or header not in FALSE_WORDS,
    )
