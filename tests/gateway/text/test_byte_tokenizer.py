"""The tokenizer of models that have none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.errors import CheckpointError
from baton.gateway.text.byte_tokenizer import byte_tokenizer_json
from baton.gateway.text.served_model import ServedModel
from baton.gateway.text.tokenizer import TextTokenizer

TOKENIZER = TextTokenizer(byte_tokenizer_json())


@given(st.text())
def test_tokens_are_the_bytes_of_the_text(text: str) -> None:
    tokens = TOKENIZER.encode(text, add_special_tokens=True)

    assert bytes(tokens) == text.encode()
    assert b"".join(map(TOKENIZER.token_bytes, tokens)) == text.encode()


def test_other_tokens_stand_for_nothing() -> None:
    assert TOKENIZER.token_bytes(256) == b""
    assert not TOKENIZER.is_special(256)


def test_it_is_used_only_where_no_tokenizer_is_needed(tmp_path: Path) -> None:
    config = {"vocab_size": 300, "max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))

    model = ServedModel.load(tmp_path, "dummy", needs_tokenizer=False)

    assert model.tokenizer.encode("é", add_special_tokens=True) == (0xC3, 0xA9)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        ServedModel.load(tmp_path, "real")
