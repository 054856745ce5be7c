"""From token updates to the text a client sees: detokenised, and cut at the first stop string."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baton.core.messages import FinishReason, TokenLogprob, TokenUpdate
from baton.platform.gateway.text.detokenizer import Detokenizer
from baton.platform.gateway.text.stop import StopFinder
from baton.platform.gateway.text.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """What one update adds. Text may lag behind the tokens; in the last delta it catches up."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    """As many as tokens when asked for, else none."""
    text_offsets: tuple[int, ...] = ()
    """By token: how many characters of output come before it."""
    finish_reason: FinishReason | None = None


class OutputText:
    """The output of one request."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        prompt: Sequence[int],
        *,
        stops: Sequence[str] = (),
        min_tokens: int = 0,
    ) -> None:
        """Stop strings are looked for only in the text after the first `min_tokens` tokens."""
        self._detokenizer = Detokenizer(tokenizer, prompt)
        self._finder = StopFinder(stops) if stops else None
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._num_chars = 0

    def feed(self, update: TokenUpdate) -> TextDelta:
        """Tokens after a stop string are dropped; the delta is then the last one."""
        released: list[str] = []
        offsets: list[int] = []
        reason = update.finish_reason
        num_shown = len(update.tokens) - (reason is FinishReason.STOP)
        for index, token in enumerate(update.tokens):
            offsets.append(self._num_chars)
            self._num_tokens += 1
            piece = self._detokenizer.feed(token) if index < num_shown else ""
            released.append(self._release(piece))
            if self._is_stopped:
                reason = FinishReason.STOP
                break
        if reason is not None:
            released.append(self._finish())
        num_tokens = len(offsets)
        return TextDelta(
            text="".join(released),
            tokens=update.tokens[:num_tokens],
            logprobs=update.logprobs[:num_tokens],
            text_offsets=tuple(offsets),
            finish_reason=FinishReason.STOP if self._is_stopped else reason,
        )

    @property
    def _is_stopped(self) -> bool:
        return self._finder is not None and self._finder.is_found

    def _release(self, piece: str) -> str:
        self._num_chars += len(piece)
        if self._finder is None or self._num_tokens <= self._min_tokens:
            return piece
        return self._finder.feed(piece)

    def _finish(self) -> str:
        if self._is_stopped:
            return ""
        rest = self._release(self._detokenizer.flush())
        return rest if self._finder is None else rest + self._finder.flush()


def merge(deltas: Sequence[TextDelta]) -> TextDelta:
    """All of an output as one delta."""
    return TextDelta(
        text="".join(delta.text for delta in deltas),
        tokens=tuple(token for delta in deltas for token in delta.tokens),
        logprobs=tuple(entry for delta in deltas for entry in delta.logprobs),
        text_offsets=tuple(offset for delta in deltas for offset in delta.text_offsets),
        finish_reason=deltas[-1].finish_reason if deltas else None,
    )
