"""Where in a text of tokens each pair of tokens stands, kept as the text grows."""

from __future__ import annotations

from collections.abc import Sequence

Pair = tuple[int, int]


class TokenIndex:
    """What `follow` costs is what is new of the text."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._places: dict[Pair, list[int]] = {}
        """By pair of neighbours: where the token behind them stands, in order."""

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        text, places = self.tokens, self._places
        for token in tokens:
            text.append(token)
            place = len(text)
            if place > 1:
                places.setdefault((text[-2], token), []).append(place)

    def behind(self, pair: Pair, max_places: int) -> list[int]:
        """The places behind the last occurrences of `pair` that a token stands in, latest first."""
        found = self._places.get(pair, ())
        last = len(self.tokens)
        return [place for place in reversed(found[-max_places - 1 :]) if place < last][:max_places]


def common_suffix(text: Sequence[int], end: int, other: Sequence[int], limit: int) -> int:
    """How many tokens before `end` of `text` are those at the end of `other`, up to `limit`."""
    limit, last = min(limit, end, len(other)), len(other)
    length = 0
    while length < limit and text[end - 1 - length] == other[last - 1 - length]:
        length += 1
    return length
