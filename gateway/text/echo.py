"""A prompt returned before its output, for `echo`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baton.gateway.text.detokenizer import Detokenizer
from baton.gateway.text.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    text: str
    tokens: tuple[int, ...]
    text_offsets: tuple[int, ...]
    """Characters before each token."""

    @classmethod
    def of(cls, tokenizer: TextTokenizer, tokens: Sequence[int], text: str | None) -> EchoedPrompt:
        """`text` is the original prompt, if it was text; tokenising may have changed it. A prompt
        of tokens that ends within a character is echoed without it: the output begins with the
        whole character.
        """
        detokenizer = Detokenizer(tokenizer)
        offsets: list[int] = []
        pieces: list[str] = []
        num_chars = 0
        for token in tokens:
            offsets.append(num_chars)
            pieces.append(detokenizer.feed(token))
            num_chars += len(pieces[-1])
        shown = "".join(pieces) if text is None else text
        return cls(shown, tuple(tokens), tuple(min(offset, len(shown)) for offset in offsets))
