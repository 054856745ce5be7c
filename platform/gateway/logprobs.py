"""Logprobs in OpenAI's two formats."""

from __future__ import annotations

from baton.core.messages import TokenLogprob
from baton.platform.gateway.answers import (
    ChatLogprob,
    ChatLogprobs,
    CompletionLogprobs,
    TopLogprob,
)
from baton.platform.gateway.text.output_text import TextDelta
from baton.platform.gateway.text.tokenizer import TextTokenizer

MIN_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON does not have."""


def completion_logprobs(delta: TextDelta, tokenizer: TextTokenizer) -> CompletionLogprobs:
    """`top_logprobs` always holds the sampled token as well."""
    return CompletionLogprobs(
        tokens=[_text(tokenizer.token_bytes(token)) for token in delta.tokens],
        token_logprobs=[_finite(entry.logprob) for entry in delta.logprobs],
        top_logprobs=[
            {
                _text(tokenizer.token_bytes(token)): _finite(logprob)
                for token, logprob in (*entry.top, (entry.token, entry.logprob))
            }
            for entry in delta.logprobs
        ],
        text_offset=list(delta.text_offsets),
    )


def chat_logprobs(delta: TextDelta, tokenizer: TextTokenizer) -> ChatLogprobs:
    return ChatLogprobs([_chat_logprob(entry, tokenizer) for entry in delta.logprobs])


def _chat_logprob(entry: TokenLogprob, tokenizer: TextTokenizer) -> ChatLogprob:
    data = tokenizer.token_bytes(entry.token)
    top = [_top_logprob(token, logprob, tokenizer) for token, logprob in entry.top]
    return ChatLogprob(_text(data), _finite(entry.logprob), list(data), top)


def _top_logprob(token: int, logprob: float, tokenizer: TextTokenizer) -> TopLogprob:
    data = tokenizer.token_bytes(token)
    return TopLogprob(_text(data), _finite(logprob), list(data))


def _text(data: bytes) -> str:
    """A token that is only part of a character is written as OpenAI does: `bytes:\\xe2\\x82`."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _finite(logprob: float) -> float:
    return max(logprob, MIN_LOGPROB)
