"""What a request has seen, counted as it grows."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from baton.engine.sampling.token_counts import TokenCounts

tokens = st.lists(st.integers(0, 6), max_size=12)


@given(tokens, st.lists(tokens, max_size=4))
def test_counts_are_those_of_the_whole_output_however_it_came(
    prompt: list[int], parts: list[list[int]]
) -> None:
    counts, output = TokenCounts(prompt), list[int]()

    for part in parts:
        output.extend(part)
        counts.follow(output)

    expected = {token: 0 for token in prompt} | Counter(output)
    assert dict(zip(counts.tokens, counts.counts, strict=True)) == expected
    assert len(counts.tokens) == len(expected)
