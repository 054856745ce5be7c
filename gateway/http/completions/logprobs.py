"""Logprobs in OpenAI's two formats."""

from __future__ import annotations

from typing import Protocol

from baton.core.sampling import TokenLogprob
from baton.gateway.http.completions.answers import (
    ChatLogprob,
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TopLogprob,
)
from baton.gateway.text.output_text import TextDelta
from baton.gateway.text.tokenizer import TextTokenizer

MIN_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON does not have."""


class TokenNames(Protocol):
    """The names of tokens in an answer."""

    def token_text(self, token: int) -> str: ...

    def token_bytes(self, token: int) -> bytes: ...


class NamesById:
    """Names like `token_id:7`, for vLLM's `return_tokens_as_token_ids`: texts of tokens may be
    ambiguous."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.token_bytes = tokenizer.token_bytes

    def token_text(self, token: int) -> str:
        return f"token_id:{token}"


def token_names(tokenizer: TextTokenizer, *, by_id: bool | None) -> TokenNames:
    return NamesById(tokenizer) if by_id else tokenizer


def completion_logprobs(
    delta: TextDelta, tokenizer: TokenNames, num_top: int
) -> CompletionLogprobs:
    """Logprobs in the completions format. `top_logprobs` always includes the token itself. An
    echoed prompt comes first."""
    tokens, offsets = delta.tokens, delta.text_offsets
    entries: list[TokenLogprob | None] = [*delta.logprobs]
    if delta.echo is not None:
        tokens, offsets = delta.echo.tokens + tokens, delta.echo.text_offsets + offsets
        entries = [None, *delta.prompt_logprobs, *entries]
    return CompletionLogprobs(
        tokens=[tokenizer.token_text(token) for token in tokens],
        token_logprobs=[None if entry is None else _finite(entry.logprob) for entry in entries],
        top_logprobs=[
            None if entry is None else _top(entry, tokenizer, num_top) for entry in entries
        ],
        text_offset=list(offsets),
    )


def prompt_logprobs(delta: TextDelta, tokenizer: TokenNames, num_top: int) -> PromptLogprobs:
    return [None, *(_prompt_logprob(entry, tokenizer, num_top) for entry in delta.prompt_logprobs)]


def _prompt_logprob(
    entry: TokenLogprob, tokenizer: TokenNames, num_top: int
) -> dict[int, PromptLogprob]:
    ranked = {token: (rank, logprob) for rank, (token, logprob) in enumerate(entry.top, start=1)}
    shown = {entry.token: (None, entry.logprob)} | dict(list(ranked.items())[:num_top])
    if entry.token in ranked:
        shown[entry.token] = ranked[entry.token]
    return {
        token: PromptLogprob(_finite(logprob), rank, tokenizer.token_text(token))
        for token, (rank, logprob) in shown.items()
    }


def _top(entry: TokenLogprob, tokenizer: TokenNames, num_top: int) -> dict[str, float]:
    return {
        tokenizer.token_text(token): _finite(logprob)
        for token, logprob in (*entry.top[:num_top], (entry.token, entry.logprob))
    }


def chat_logprobs(delta: TextDelta, tokenizer: TokenNames) -> ChatLogprobs:
    return ChatLogprobs([_chat_logprob(entry, tokenizer) for entry in delta.logprobs])


def _chat_logprob(entry: TokenLogprob, tokenizer: TokenNames) -> ChatLogprob:
    data = list(tokenizer.token_bytes(entry.token))
    top = [_top_logprob(token, logprob, tokenizer) for token, logprob in entry.top]
    return ChatLogprob(tokenizer.token_text(entry.token), _finite(entry.logprob), data, top)


def _top_logprob(token: int, logprob: float, tokenizer: TokenNames) -> TopLogprob:
    data = list(tokenizer.token_bytes(token))
    return TopLogprob(tokenizer.token_text(token), _finite(logprob), data)


def _finite(logprob: float) -> float:
    return max(logprob, MIN_LOGPROB)
