"""Token updates to text: detokenised, and cut at the first stop string."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from baton.core.messages import TokenUpdate
from baton.core.sampling import FinishReason, TokenLogprob
from baton.gateway.text.detokenizer import Detokenizer
from baton.gateway.text.echo import EchoedPrompt
from baton.gateway.text.stop import StopFinder
from baton.gateway.text.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """The text of one update. It may lag behind the tokens; the last delta catches up."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    """As many as tokens when asked for, else none."""
    text_offsets: tuple[int, ...] = ()
    """Characters before each token, of the output and of an echoed prompt."""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """Logprobs of the prompt's tokens but the first, in the first delta, when asked for."""
    echo: EchoedPrompt | None = None
    """The echoed prompt, in the first delta, when asked for; `text` begins with its text."""
    finish_reason: FinishReason | None = None
    stop_string: str | None = None
    """The stop string that ended the output, in the last delta, if one did."""

    def after(self, echo: EchoedPrompt, *, is_first: bool) -> TextDelta:
        """Return the delta with its offsets moved behind an echoed prompt."""
        return replace(
            self,
            text=echo.text + self.text if is_first else self.text,
            text_offsets=tuple(offset + len(echo.text) for offset in self.text_offsets),
            echo=echo if is_first else None,
        )


class OutputText:
    """The output of one request."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        prompt: Sequence[int],
        *,
        stops: Sequence[str] = (),
        min_tokens: int = 0,
        shown_special: Set[int] = frozenset(),
        includes_stop: bool = False,
    ) -> None:
        """Stop strings are looked for only in the text after the first `min_tokens` tokens."""
        self._detokenizer = Detokenizer(tokenizer, prompt, shown_special=shown_special)
        self._finder = StopFinder(stops, includes_stop=includes_stop) if stops else None
        self._includes_stop = includes_stop
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._num_chars = 0

    def feed(self, update: TokenUpdate) -> TextDelta:
        """Tokens after a stop string are dropped; the delta is then the last one."""
        released: list[str] = []
        offsets: list[int] = []
        reason = update.finish_reason
        hides_last = reason is FinishReason.STOP and not self._includes_stop
        num_shown = len(update.tokens) - hides_last
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
        stop_string = None if self._finder is None else self._finder.found
        num_tokens = len(offsets)
        return TextDelta(
            text="".join(released),
            tokens=update.tokens[:num_tokens],
            logprobs=update.logprobs[:num_tokens],
            text_offsets=tuple(offsets),
            prompt_logprobs=update.prompt_logprobs,
            finish_reason=reason if stop_string is None else FinishReason.STOP,
            stop_string=stop_string,
        )

    @property
    def _is_stopped(self) -> bool:
        return self._finder is not None and self._finder.found is not None

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
    """Merge all deltas of an output into one."""
    return TextDelta(
        text="".join(delta.text for delta in deltas),
        tokens=tuple(token for delta in deltas for token in delta.tokens),
        logprobs=tuple(entry for delta in deltas for entry in delta.logprobs),
        text_offsets=tuple(offset for delta in deltas for offset in delta.text_offsets),
        prompt_logprobs=deltas[0].prompt_logprobs if deltas else (),
        echo=deltas[0].echo if deltas else None,
        finish_reason=deltas[-1].finish_reason if deltas else None,
        stop_string=deltas[-1].stop_string if deltas else None,
    )
