"""Text to tokens, and what each token is worth in bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from tokenizers import Tokenizer

from baton.core.errors import CheckpointError
from baton.gateway.text.token_bytes import byte_rule

CHARS_PER_TOKEN = 16
"""More than texts have."""


class TextTokenizer:
    """A tokenizer.json. Immutable but for a memo of token bytes."""

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
        """Tokens that text cannot spell."""
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
        """The token that is called so."""
        found: int | None = self._tokenizer.token_to_id(name)
        return found

    def encode(
        self, text: str, pair: str | None = None, *, add_special_tokens: bool
    ) -> tuple[int, ...]:
        """Two texts are joined by what the tokenizer has for pairs.

        Long texts take a while; this call lets go of the interpreter lock meanwhile.
        """
        given = text if pair is None else (text, pair)
        (encoding,) = self._tokenizer.encode_batch_fast(
            [given], add_special_tokens=add_special_tokens
        )
        return tuple(encoding.ids)

    def beginning(self, text: str, num_tokens: int) -> str:
        """The text of its first tokens; of all but so many of the last if `num_tokens` is negative.

        A character that they are only a part of is left out.
        """
        offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
        num_kept = num_tokens if num_tokens >= 0 else max(0, len(offsets) + num_tokens)
        if num_kept >= len(offsets):
            return text
        end = offsets[num_kept - 1][1] if num_kept else 0
        return text[: min(end, offsets[num_kept][0])]

    def exceeds(self, text: str, max_tokens: int) -> bool:
        """Whether `text` has far more tokens than these, found out without reading much more.

        For texts of megabytes, whose tokens would fill gigabytes. Twice as many are far more: the
        last tokens of a beginning may merge with what follows.
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
        """The bytes of text `token` stands for; of a special token, its name. b"" if unknown."""
        found = self._bytes_by_token.get(token)
        if found is None:
            piece = self._tokenizer.id_to_token(token)
            found = b"" if piece is None else self._rule.to_bytes(piece)
            self._bytes_by_token[token] = found
        return found

    def is_special(self, token: int) -> bool:
        """Special tokens structure the prompt and never show in generated text."""
        return token in self.special
