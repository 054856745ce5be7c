"""Stop strings over pieces of text, against a search of the whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.scripted import text_tokenizer, tokens_of

from baton.core.ids import RequestId
from baton.core.messages import TokenUpdate
from baton.core.sampling import FinishReason, TokenLogprob
from baton.gateway.text.output_text import OutputText, TextDelta, merge
from baton.gateway.text.stop import StopFinder

few_letters = st.text("ab", max_size=12)


def expected_cut(text: str, stops: list[str]) -> int | None:
    """Where the output ends: the match that ends first counts, and of those the longest."""
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return min(found)[1] if found else None


@given(pieces=st.lists(few_letters, max_size=6), stop=st.text("ab", min_size=1, max_size=4))
def test_one_stop_string_is_found_where_find_finds_it(pieces: list[str], stop: str) -> None:
    finder = StopFinder([stop])

    released = "".join(map(finder.feed, pieces))

    text = "".join(pieces)
    assert finder.found == (stop if stop in text else None)
    if finder.found:
        assert released == text[: text.find(stop)]
    else:
        assert released + finder.flush() == text


@given(
    pieces=st.lists(few_letters, max_size=6),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4),
)
def test_the_cut_does_not_depend_on_the_pieces(pieces: list[str], stops: list[str]) -> None:
    finder = StopFinder(stops)

    released = "".join(map(finder.feed, pieces))

    cut = expected_cut("".join(pieces), stops)
    assert (finder.found is not None) == (cut is not None)
    if cut is not None:
        assert released == "".join(pieces)[:cut]
        assert "".join(pieces)[cut:].startswith(str(finder.found))


@given(text=few_letters, stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1))
def test_exactly_what_could_become_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    finder = StopFinder(stops)

    released = finder.feed(text)

    if finder.found is None:
        endings = [text[i:] for i in range(len(text) + 1)]
        longest = next(e for e in endings if any(s.startswith(e) and s != e for s in stops))
        assert released == text.removesuffix(longest)


def test_nothing_follows_a_stop_string() -> None:
    finder = StopFinder(["END"])

    assert [finder.feed(piece) for piece in ("yes E", "ND", "more")] == ["yes ", "", ""]
    assert finder.flush() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopFinder([""])


def update(tokens: list[int], reason: FinishReason | None = None, **fields: object) -> TokenUpdate:
    return TokenUpdate(
        request_id=RequestId("r"),
        attempt=1,
        tokens=tuple(tokens),
        logprobs=tuple(TokenLogprob(token, -1.0) for token in tokens),
        finish_reason=reason,
    )


def output(text: str, *, size: int = 1, min_tokens: int = 0, stops: list[str]) -> list[TextDelta]:
    tokens = tokens_of(text)
    output_text = OutputText(text_tokenizer(), [], stops=stops, min_tokens=min_tokens)
    deltas = []
    for start in range(0, len(tokens), size):
        reason = FinishReason.LENGTH if start + size >= len(tokens) else None
        deltas.append(output_text.feed(update(tokens[start : start + size], reason)))
        if deltas[-1].finish_reason is not None:
            break
    return deltas


@pytest.mark.parametrize("size", [1, 3, 100])
def test_output_is_cut_at_the_stop_string_and_says_how_many_tokens_that_took(size: int) -> None:
    whole = merge(output("count one two three four", size=size, stops=["two t"]))

    assert whole.text == "count one "
    assert (whole.finish_reason, whole.stop_string) == (FinishReason.STOP, "two t")
    assert whole.tokens == tuple(tokens_of("count one two three four"))[: len(whole.tokens)]
    assert len(whole.logprobs) == len(whole.tokens) == len(whole.text_offsets)
    longer = b"".join(map(text_tokenizer().token_bytes, whole.tokens)).decode()
    assert "two t" in longer
    assert "two t" not in longer[: -len(text_tokenizer().token_bytes(whole.tokens[-1]))]


def test_stop_strings_wait_for_min_tokens() -> None:
    min_tokens = len(tokens_of("stop one"))

    whole = merge(output("stop one stop two", stops=["stop"], min_tokens=min_tokens))

    assert whole.text == "stop one "


def test_a_stop_string_that_ends_with_the_last_of_min_tokens_is_passed_over() -> None:
    first = text_tokenizer().token_bytes(tokens_of("stop one")[0]).decode()

    whole = merge(output("stop one stop two", stops=[first], min_tokens=1))

    assert whole.text == "stop one "


def test_what_was_held_back_is_released_at_the_end() -> None:
    deltas = output("Hello wor", stops=["world"])

    assert merge(deltas).text == "Hello wor"
    assert (deltas[-1].finish_reason, deltas[-1].stop_string) == (FinishReason.LENGTH, None)


def test_text_offsets_count_characters_before_each_token() -> None:
    whole = merge(output("Hello, 日本 fox", stops=[]))

    for token, offset in zip(whole.tokens, whole.text_offsets, strict=True):
        piece = text_tokenizer().token_bytes(token)
        if piece.isascii():
            assert whole.text[offset:].encode().startswith(piece)


def test_the_token_that_stopped_the_model_does_not_show() -> None:
    output_text = OutputText(text_tokenizer(), [])

    delta = output_text.feed(update(tokens_of("Hello!"), FinishReason.STOP))

    assert delta.text == "Hello"
    assert delta.tokens == tuple(tokens_of("Hello!"))
