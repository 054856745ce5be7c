"""Text to tokens, and the bytes of each token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from tokenizers import Tokenizer

from baton.core.errors import CheckpointError
from baton.gateway.text.token_bytes import byte_rule

CHARS_PER_TOKEN = 16
"""Upper bound on mean characters per token."""


class TextTokenizer:
    """A tokenizer.json. Immutable except for a cache of token bytes."""

    def __init__(self, tokenizer_json: str) -> None:
        """Raises CheckpointError if `tokenizer_json` is broken or of an unknown kind."""
        try:
            self._tokenizer = Tokenizer.from_str(tokenizer_json)
        except Exception as error:  # the library raises nothing more specific
            raise CheckpointError(f"tokenizer.json cannot be loaded: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._rule = byte_rule(msgspec.json.decode(tokenizer_json, type=dict[str, Any])["decoder"])
        added = self._tokenizer.get_added_tokens_decoder()
        self.special = frozenset(token for token, entry in added.items() if entry.special)
        """Special tokens, which text cannot spell."""
        self._bytes_by_token: dict[int, bytes] = {}

    @property
    def drops_leading_space(self) -> bool:
        """Whether one space at the very start of a decoded text disappears."""
        return self._rule.drops_leading_space

    def to_json(self) -> str:
        return str(self._tokenizer.to_str())

    def special_tokens(self, names: Iterable[str]) -> dict[str, int]:
        """The ids of those of `names` that are special tokens of this model, by name."""
        found = {name: self._tokenizer.token_to_id(name) for name in names}
        return {name: token for name, token in found.items() if token in self.special}

    def id_of(self, name: str) -> int | None:
        """The id of the token with this name; None if there is none."""
        found: int | None = self._tokenizer.token_to_id(name)
        return found

    def encode(
        self, text: str, pair: str | None = None, *, add_special_tokens: bool
    ) -> tuple[int, ...]:
        """Tokenise a text, or a pair joined by the tokenizer's pair template. Releases the GIL."""
        given = text if pair is None else (text, pair)
        (encoding,) = self._tokenizer.encode_batch_fast(
            [given], add_special_tokens=add_special_tokens
        )
        return tuple(encoding.ids)

    def beginning(self, text: str, num_tokens: int) -> str:
        """The text of the first `num_tokens` tokens, or of all but the last ones if negative,
        without an incomplete character at the end.
        """
        offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
        num_kept = num_tokens if num_tokens >= 0 else max(0, len(offsets) + num_tokens)
        if num_kept >= len(offsets):
            return text
        end = offsets[num_kept - 1][1] if num_kept else 0
        return text[: min(end, offsets[num_kept][0])]

    def exceeds(self, text: str, max_tokens: int) -> bool:
        """Whether `text` has more than twice `max_tokens` tokens, found by tokenising only its
        beginning, since megabytes of text would need gigabytes. The factor of two is needed because
        the last tokens of a prefix may merge with the text after it.
        """
        num_chars = CHARS_PER_TOKEN * max_tokens
        while num_chars < len(text):
            if len(self.encode(text[:num_chars], add_special_tokens=False)) > 2 * max_tokens:
                return True
            num_chars *= 2
        return False

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a whole sequence, special tokens by their names."""
        data = b"".join(map(self.token_bytes, tokens))
        if self.drops_leading_space:
            data = data.removeprefix(b" ")
        return data.decode(errors="replace")

    def token_text(self, token: int) -> str:
        """A part of a character is written as OpenAI does: `bytes:\\xe2\\x82`."""
        data = self.token_bytes(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def token_bytes(self, token: int) -> bytes:
        """The bytes of `token`; a special token's are its name. b"" if unknown."""
        found = self._bytes_by_token.get(token)
        if found is None:
            piece = self._tokenizer.id_to_token(token)
            found = b"" if piece is None else self._rule.to_bytes(piece)
            self._bytes_by_token[token] = found
        return found

    def is_special(self, token: int) -> bool:
        """Whether the token is special: it structures the prompt and is not shown in output."""
        return token in self.special
