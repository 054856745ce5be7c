"""A tokenizer.json for models without one: token i is byte i, for i below 256.

Tokens from 256 on have no text. For dummy weights, where only the number of tokens matters.
"""

from __future__ import annotations

import msgspec

from baton.gateway.text.token_bytes import BYTE_BY_CHAR


def byte_tokenizer_json() -> str:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": BYTE_BY_CHAR, "merges": []},
    }
    return msgspec.json.encode(tokenizer).decode()
