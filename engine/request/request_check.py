"""Refuses requests that an engine could never answer."""

from __future__ import annotations

from baton.core.errors import InvalidRequest
from baton.core.sampling import FinishReason
from baton.core.wording import count_of
from baton.engine.models.config.info import ModelInfo
from baton.engine.request.pooling import Embedding
from baton.engine.request.request import Request


def check_request(
    request: Request,
    *,
    info: ModelInfo,
    max_len: int,
    max_model_len: int,
    finish_reason: FinishReason | None,
) -> None:
    """Raise InvalidRequest, naming the field at fault.

    `max_len` is the tenant's share of `max_model_len`. `finish_reason` is set if the request is
    already over with the output it brings.
    """
    name, vocab_size = request.request_id, info.vocab_size
    if not request.prompt:
        raise InvalidRequest(f"{name} has an empty prompt; give at least 1 token", field="prompt")
    if request.adapter and request.adapter not in info.adapters:
        raise InvalidRequest(
            f"{name} asks for the adapter `{request.adapter}`, which this replica does not have; "
            f"it has {', '.join(info.adapters) or 'none'}",
            field="model",
        )
    _check_length(request, max_len, is_all=max_len == max_model_len)
    if not 0 <= min(request.tokens) <= max(request.tokens) < vocab_size:
        raise InvalidRequest(f"{name} has token ids outside 0..{vocab_size - 1}", field="prompt")
    if request.embedding is not None:
        _check_logits(request, request.embedding, info)
        return
    if info.num_labels is not None:
        raise InvalidRequest(
            f"{name} asks a classifier ({info.architecture}) to generate tokens; ask for its "
            "logits",
            field="prompt",
        )
    if finish_reason is not None or request.has_reached_own_limit:
        raise InvalidRequest(
            f"{name} has nothing left to generate after "
            f"{count_of(len(request.output), 'output token')}; raise max_tokens",
            field="max_tokens",
        )


def _check_logits(request: Request, embedding: Embedding, info: ModelInfo) -> None:
    """Raise InvalidRequest for logits of a whole vocabulary, which would be as large as thousands
    of tokens, or of tokens outside it."""
    if not embedding.is_of_logits:
        return
    tokens = embedding.tokens
    if not tokens and info.num_labels is None:
        raise InvalidRequest(
            f"{request.request_id} asks for logits of {info.architecture}, which is not a "
            "classifier; list the tokens in allowed_token_ids",
            field="allowed_token_ids",
        )
    if tokens and not 0 <= min(tokens) <= max(tokens) < info.num_logits:
        raise InvalidRequest(
            f"{request.request_id} asks for logits outside 0..{info.num_logits - 1}",
            field="allowed_token_ids",
        )


def _check_length(request: Request, max_len: int, *, is_all: bool) -> None:
    """Raise InvalidRequest if the request is too long. An embedding needs room for its prompt,
    generation for at least one more token."""
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
            f"{request.request_id} has {num_tokens} tokens, which leaves no room to generate "
            f"within the {limit}; shorten the prompt",
            field="prompt",
        )


def _share_of(tenant: str) -> str:
    if not tenant:
        return "that the shares of tenants leave to others (gateway.tenants)"
    return f"that tenant `{tenant}` may have in the cache (gateway.tenants)"
