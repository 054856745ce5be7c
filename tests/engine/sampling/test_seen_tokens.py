"""What rows have seen, followed where they draw."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.engine.sampling.seen_tokens import ROOM, seen_tokens
from baton.engine.sampling.token_counts import TokenCounts
from baton.kernels.sampling.token_penalties import Penalties, penalise

VOCAB = 9
CPU = torch.device("cpu")
rows = st.lists(
    st.tuples(
        st.lists(st.integers(0, VOCAB - 1), max_size=6),  # prompt
        st.lists(st.integers(0, VOCAB - 1), max_size=6),  # output so far
    ),
    min_size=1,
    max_size=4,
)


def counted(prompt: list[int], output: list[int]) -> TokenCounts:
    counts = TokenCounts(prompt)
    counts.follow(output)
    return counts


@given(rows, st.lists(st.integers(0, VOCAB - 1), max_size=12))
@settings(max_examples=80, deadline=None)
def test_what_was_followed_is_what_the_host_would_count(
    texts: list[tuple[list[int], list[int]]], drawn: list[int]
) -> None:
    """By what becomes of logits, of a batch in which every other row is penalised."""
    batch_rows = [2 * i for i in range(len(texts))]
    seen = seen_tokens(batch_rows, [counted(*text) for text in texts], CPU)
    logits = torch.linspace(-2, 3, 2 * len(texts) * VOCAB).view(-1, VOCAB)
    penalties = Penalties(*torch.tensor([[1.5], [0.25], [0.125]]).repeat(1, 2 * len(texts)))

    for token in drawn:
        seen.add(torch.tensor([(token + i) % VOCAB for i in range(len(texts))]))

    outputs = [
        output + [(token + i) % VOCAB for token in drawn] for i, (_, output) in enumerate(texts)
    ]
    expected = seen_tokens(
        batch_rows, [counted(text[0], out) for text, out in zip(texts, outputs, strict=True)], CPU
    )
    found, wanted = (penalise(logits, penalties, each.occurrences()) for each in (seen, expected))
    assert torch.equal(found, wanted)


def test_there_is_room_for_any_number_of_draws() -> None:
    seen = seen_tokens([0, 1], [counted([3], []), counted([], [])], CPU)
    for turn in range(3 * ROOM):
        seen.add(torch.tensor([turn % VOCAB, 4]))

    occurrences = seen.occurrences()
    of_second = occurrences.counts[occurrences.rows == 1]
    assert (of_second == 3 * ROOM).all()
    of_third = occurrences.counts[(occurrences.rows == 0) & (occurrences.tokens == 3)]
    assert (of_third == len(range(3, 3 * ROOM, VOCAB))).all()
