"""Streaming detokenizer.

    tokens    [E2]  [82 AC]  [special]  [41 C3]  end
    text       ""     "€"       ""        "A"    U+FFFD

The pieces always add up to text(prompt + output) - text(prompt): characters are never split, and an
incomplete one becomes U+FFFD only when nothing can complete it any more.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence, Set

from baton.gateway.text.tokenizer import TextTokenizer

MAX_CHARACTER_BYTES = 4

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one request's output."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        prompt: Sequence[int] = (),
        *,
        shown_special: Set[int] = frozenset(),
    ) -> None:
        """`prompt` may end within a character, which then becomes part of the output. Special
        tokens have no text, except `shown_special`, which show their names.
        """
        self._tokenizer = tokenizer
        self._shown_special = shown_special
        self._decoder = _Utf8Decoder("replace")
        ending = self._ending(prompt)
        self._decoder.decode(ending)
        self._drops_space = tokenizer.drops_leading_space and not ending

    def feed(self, token: int) -> str:
        """The characters that `token` completes."""
        if self._tokenizer.is_special(token) and token not in self._shown_special:
            return ""
        data = self._tokenizer.token_bytes(token)
        if self._drops_space and data:
            self._drops_space = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def flush(self) -> str:
        """The rest at the end: U+FFFD for an incomplete character, else nothing."""
        return self._decoder.decode(b"", final=True)

    def _ending(self, prompt: Sequence[int]) -> bytes:
        """The last bytes of the prompt's text, enough to hold an incomplete character."""
        ending = b""
        for token in reversed(prompt):
            if not self._tokenizer.is_special(token):
                ending = self._tokenizer.token_bytes(token) + ending
            if len(ending) >= MAX_CHARACTER_BYTES:
                break
        return ending
