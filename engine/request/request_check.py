"""Which requests an engine refuses because it could never answer them."""

from __future__ import annotations

from baton.core.errors import InvalidRequest
from baton.core.messages import FinishReason
from baton.engine.request.request import Request


def check_request(
    request: Request,
    *,
    vocab_size: int,
    max_len: int,
    max_model_len: int,
    finish_reason: FinishReason | None,
) -> None:
    """Raise InvalidRequest, naming the field at fault.

    `max_len` is what its tenant may have of `max_model_len`.
    `finish_reason` says why the request is over with what it brings; None if it is not.
    """
    name = request.request_id
    if not request.prompt:
        raise InvalidRequest(f"{name} has an empty prompt; give at least 1 token", field="prompt")
    _check_length(request, max_len, is_all=max_len == max_model_len)
    if not 0 <= min(request.tokens) <= max(request.tokens) < vocab_size:
        raise InvalidRequest(f"{name} has token ids outside 0..{vocab_size - 1}", field="prompt")
    if request.embedding is not None:
        return
    if finish_reason is not None or request.has_reached_own_limit:
        raise InvalidRequest(
            f"{name} has nothing left to generate after {len(request.output)} output tokens; "
            "raise max_tokens",
            field="max_tokens",
        )


def _check_length(request: Request, max_len: int, *, is_all: bool) -> None:
    """An embedding needs room for its prompt alone, an output for one token more at least."""
    num_tokens = len(request.tokens)
    limit = f"{max_len} served here" if is_all else f"{max_len} {_share_of(request.tenant)}"
    if request.embedding is not None:
        if num_tokens > max_len:
            raise InvalidRequest(
                f"{request.request_id} has {num_tokens} tokens, more than the {limit}; shorten "
                "the prompt",
                field="prompt",
            )
    elif num_tokens >= max_len:
        raise InvalidRequest(
            f"{request.request_id} has {num_tokens} tokens, which leaves none to generate of the "
            f"{limit}; shorten the prompt",
            field="prompt",
        )


def _share_of(tenant: str) -> str:
    if not tenant:
        return "that the shares of tenants leave to others (gateway.tenants)"
    return f"that tenant `{tenant}` may have in the cache (gateway.tenants)"
