"""One call of a service, of those that its generated stub makes for a channel all at once.

A gateway has a channel to each of a thousand replicas, and of the dozen calls that a replica takes
asks one or two by it: to make the others takes longer than to connect, and memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import grpc.aio


class _Made(NamedTuple):
    """How a stub makes a call for a channel."""

    kind: str
    """The channel's method that does it."""
    arguments: tuple[Any, ...]
    options: dict[str, Any]


class _Noting:
    """A channel that notes how calls are made for it."""

    def __getattr__(self, kind: str) -> Callable[..., _Made]:
        return partial(self._note, kind)

    @staticmethod
    def _note(kind: str, *arguments: Any, **options: Any) -> _Made:
        return _Made(kind, arguments, options)


@cache
def _made_by(stub: Callable[[Any], object]) -> Mapping[str, _Made]:
    return vars(stub(_Noting()))


def one_call(stub: Callable[[Any], object], name: str, channel: grpc.aio.Channel) -> Any:
    """What `stub(channel)` has as `name`."""
    made = _made_by(stub)[name]
    return getattr(channel, made.kind)(*made.arguments, **made.options)
