"""Text from tokens, piece by piece, against the tokenizer's own decoding of the whole."""

from __future__ import annotations

import json
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.scripted import EOS, text_tokenizer, tokenizer_json
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from baton.core.errors import CheckpointError
from baton.gateway.text.detokenizer import Detokenizer
from baton.gateway.text.token_bytes import BYTE_BY_CHAR, byte_rule
from baton.gateway.text.tokenizer import TextTokenizer

CHAR_BY_BYTE = {byte: char for char, byte in BYTE_BY_CHAR.items()}


@cache
def byte_tokenizer() -> tuple[Tokenizer, TextTokenizer]:
    """Token n is byte n."""
    vocab = {CHAR_BY_BYTE[byte]: byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, TextTokenizer(tokenizer.to_str())


PIECES = ["▁", "▁Hello", "▁world", "lo", "é", "▁▁", "x", "!", "日"]


@cache
def sentencepiece_tokenizer(*, strips: bool) -> tuple[Tokenizer, TextTokenizer]:
    """As Llama 2's (with `strips`) and Gemma's are: 256 byte tokens, then pieces."""
    names = ["<s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if strips:
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    return tokenizer, TextTokenizer(tokenizer.to_str())


def pieces_of(tokenizer: TextTokenizer, tokens: list[int], prompt: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer, prompt)
    return [*map(detokenizer.feed, tokens), detokenizer.flush()]


@given(st.binary(max_size=40))
def test_any_bytes_add_up_to_the_decoding_of_the_whole(data: bytes) -> None:
    oracle, tokenizer = byte_tokenizer()

    text = "".join(pieces_of(tokenizer, list(data), []))

    assert text == oracle.decode(list(data)) == data.decode(errors="replace")


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="�"), max_size=20), st.integers(0, 80)
)
def test_valid_text_never_shows_a_replacement_character(text: str, cut: int) -> None:
    """Wherever the prompt ends and the output begins, even within a character."""
    _, tokenizer = byte_tokenizer()
    data = text.encode()

    pieces = pieces_of(tokenizer, list(data[cut:]), list(data[:cut]))

    assert text.endswith("".join(pieces))
    assert pieces[-1] == ""


@given(st.text(max_size=30))
def test_a_trained_tokenizer_gives_back_the_text_it_encoded(text: str) -> None:
    tokenizer = text_tokenizer()
    tokens = list(tokenizer.encode(text, add_special_tokens=False))

    pieces = pieces_of(tokenizer, tokens, [])

    oracle = Tokenizer.from_str(tokenizer_json())
    assert "".join(pieces) == oracle.decode(tokens, skip_special_tokens=True)


def test_a_character_waits_for_its_last_byte() -> None:
    _, tokenizer = byte_tokenizer()

    assert pieces_of(tokenizer, list("a€".encode()), []) == ["a", "", "", "€", ""]


def test_an_incomplete_character_shows_only_at_the_end() -> None:
    _, tokenizer = byte_tokenizer()

    assert pieces_of(tokenizer, [0x61, 0xE2, 0x82], []) == ["a", "", "", "�"]


def test_a_prompt_may_end_within_a_character() -> None:
    _, tokenizer = byte_tokenizer()

    assert pieces_of(tokenizer, [0x82, 0xAC], [0x61, 0xE2]) == ["", "€", ""]


def test_special_tokens_do_not_show() -> None:
    tokenizer = text_tokenizer()
    tokens = [*tokenizer.encode(f"a{EOS}b", add_special_tokens=False)]

    assert "".join(pieces_of(tokenizer, tokens, [])) == "ab"
    assert len(tokens) == 3


@pytest.mark.parametrize("strips", [True, False])
@given(tokens=st.lists(st.integers(257, 256 + len(PIECES)), max_size=10), num_prompt=st.integers(0))
def test_sentencepiece_output_continues_its_prompt(
    strips: bool, tokens: list[int], num_prompt: int
) -> None:
    oracle, tokenizer = sentencepiece_tokenizer(strips=strips)
    num_prompt %= len(tokens) + 1
    prompt = [0, *tokens[:num_prompt]]

    text = "".join(pieces_of(tokenizer, tokens[num_prompt:], prompt))

    whole = oracle.decode([0, *tokens], skip_special_tokens=True)
    assert text == whole.removeprefix(oracle.decode(prompt, skip_special_tokens=True))


def test_sentencepiece_byte_tokens_form_characters() -> None:
    oracle, tokenizer = sentencepiece_tokenizer(strips=True)
    tokens = [258, *(1 + byte for byte in "🦊".encode()), 259]

    pieces = pieces_of(tokenizer, tokens, [])

    assert pieces == ["Hello", "", "", "", "🦊", " world", ""]
    assert "".join(pieces) == oracle.decode(tokens)


def test_metaspace_decoders_are_understood() -> None:
    rule = byte_rule({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"})

    assert rule.to_bytes("▁hi") == b" hi"
    assert not rule.drops_leading_space


@pytest.mark.parametrize("decoder", [None, {"type": "WordPiece", "prefix": "##"}])
def test_decoders_without_bytes_are_refused(decoder: dict[str, str] | None) -> None:
    with pytest.raises(CheckpointError, match="unknown decoder"):
        byte_rule(decoder)


def test_tokens_beyond_the_tokenizer_are_worth_nothing() -> None:
    """Models pad their vocabulary; such rows have no text."""
    assert text_tokenizer().token_bytes(10**6) == b""


def test_a_broken_tokenizer_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        TextTokenizer(json.dumps({"model": "?"}))
