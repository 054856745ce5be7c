"""Texts cut to so many tokens."""

from __future__ import annotations

from tests.gateway.scripted import text_tokenizer


def test_a_beginning_is_of_whole_characters_and_of_no_more_tokens_than_asked_for() -> None:
    tokenizer, text = text_tokenizer(), "the fox 🦊 日 jumps"
    num_all = len(tokenizer.encode(text, add_special_tokens=False))
    beginnings = [tokenizer.beginning(text, num) for num in range(num_all + 2)]

    for num, beginning in enumerate(beginnings):
        assert text.startswith(beginning)
        assert len(tokenizer.encode(beginning, add_special_tokens=False)) <= num
        assert tokenizer.beginning(text, num - num_all) == beginning or num >= num_all
    assert (beginnings[0], beginnings[1], *beginnings[-2:]) == ("", "the", text, text)
    assert beginnings == sorted(beginnings, key=len)
