"""The bytes of text of each token, from the `decoder` of a tokenizer.json.

    ByteLevel          "Ġhé" -> each character stands for one byte        GPT-2, Llama 3, Qwen, ...
    SentencePiece-like "▁hi", "<0xE2>" -> " hi", one byte                 Llama 2, Mistral, Gemma
    Metaspace          "▁hi" -> " hi"                                     T5-like

With all of these, a sequence's text is the UTF-8 decoding of its tokens' concatenated bytes, except
for one leading space that some decoders drop at the start of a text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from baton.core.errors import CheckpointError

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class ByteRule:
    to_bytes: Callable[[str], bytes]
    drops_leading_space: bool
    """Whether one space at the start of the whole text disappears."""


def byte_rule(decoder: Mapping[str, Any] | None) -> ByteRule:
    """Raises CheckpointError for decoders that do not give each token fixed bytes."""
    steps = _steps(decoder)
    kinds = [step["type"] for step in steps]
    if "ByteLevel" in kinds:
        return ByteRule(_byte_level_bytes, False)
    known = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}
    if not kinds or not known.issuperset(kinds):
        raise CheckpointError(
            f"tokenizer.json: unknown decoder {kinds or None}; known are ByteLevel, Metaspace and "
            "sequences of Replace, ByteFallback, Fuse, Strip"
        )
    replacements = [
        _replacement(step) for step in steps if step["type"] in ("Replace", "Metaspace")
    ]
    has_byte_tokens = "ByteFallback" in kinds

    def to_bytes(piece: str) -> bytes:
        if has_byte_tokens and (match := BYTE_TOKEN.fullmatch(piece)):
            return bytes((int(match[1], 16),))
        for pattern, content in replacements:
            piece = piece.replace(pattern, content)
        return piece.encode()

    return ByteRule(to_bytes, any(map(_drops_leading_space, steps)))


def _steps(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for inner in decoder["decoders"] for step in _steps(inner)]
    return [decoder]


def _replacement(step: Mapping[str, Any]) -> tuple[str, str]:
    if step["type"] == "Metaspace":
        return step["replacement"], " "
    pattern = step["pattern"].get("String")
    if pattern is None:
        raise CheckpointError("tokenizer.json: the decoder replaces a regular expression")
    return pattern, step["content"]


def _drops_leading_space(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Metaspace":
        return bool(step.get("prepend_scheme", "always") != "never")
    return bool(step["type"] == "Strip" and step["content"] == " " and step["start"] > 0)


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's: printable bytes stand for themselves, the others for characters from 256 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(hidden)}


BYTE_BY_CHAR = _byte_level_alphabet()


def _byte_level_bytes(piece: str) -> bytes:
    try:
        return bytes(map(BYTE_BY_CHAR.__getitem__, piece))
    except KeyError:  # an added token, kept as plain text
        return piece.encode()
