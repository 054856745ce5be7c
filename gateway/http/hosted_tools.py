"""Tools that run at OpenAI's or Anthropic's servers, and nowhere here.

gateway.hosted_tools   refuse   a request that offers one is refused, by the tool's type
                       ignore   the model is not offered it; the header `x-baton-ignored` says so
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, TypeVar

from starlette.requests import Request

from baton.gateway.access.config import GatewayConfig
from baton.gateway.http.unknown_fields import printable

OPENAIS = ("function", "custom")
ANTHROPICS = (None, "custom")
"""Types of tools that their caller runs."""


class TypedTool(Protocol):
    @property
    def type(self) -> str | None: ...


T = TypeVar("T", bound=TypedTool)


def without_hosted(
    request: Request,
    config: GatewayConfig,
    tools: Sequence[T] | None,
    own: Collection[str | None],
) -> list[T] | None:
    """All of them where hosted ones are refused: whoever reads them does that."""
    if tools is None or config.hosted_tools == "refuse":
        return None if tools is None else list(tools)
    for tool in tools:
        if tool.type not in own:
            request.state.ignored_fields.append(f"tools[{printable(str(tool.type))}]")
    return [tool for tool in tools if tool.type in own]
