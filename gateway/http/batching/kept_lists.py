"""Lists of files and batches, a page at a time, as OpenAI's API has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.requests import Request

from baton.core.errors import InvalidRequest

MAX_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Page:
    """The requested part of a list."""

    limit: int
    after: str
    """The id before its first entry; empty: from the beginning."""
    is_newest_first: bool

    def of(self, ids: Sequence[str]) -> list[str]:
        """The entries from the page's first on; `ids` are sorted, oldest first."""
        if self.is_newest_first:
            return [one for one in reversed(ids) if not self.after or one < self.after]
        return [one for one in ids if one > self.after]


def page_of(request: Request, *, default: int, most: int) -> Page:
    """Raises InvalidRequest."""
    asked = request.query_params
    limit, order = limit_of(asked, default=default, most=most), asked.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest("order must be asc or desc", field="order")
    return Page(limit, asked.get("after", ""), order == "desc")


def limit_of(query: Mapping[str, str], *, default: int, most: int) -> int:
    """Raises InvalidRequest."""
    limit = query.get("limit", str(default))
    is_number = limit.isascii() and limit.isdecimal() and len(limit) <= MAX_DIGITS
    if not (is_number and 1 <= int(limit) <= most):
        raise InvalidRequest(f"limit must be from 1 to {most}", field="limit")
    return int(limit)
