"""Tools that run at OpenAI's or Anthropic's servers, which Baton does not have.

gateway.hosted_tools   refuse   a request with one is refused, naming the tool's type
                       ignore   the tool is left out; the header `x-baton-ignored` names it
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
    """The tools without hosted ones. Where hosted tools are refused, all of them: their reader
    refuses."""
    if tools is None or config.hosted_tools == "refuse":
        return None if tools is None else list(tools)
    for tool in tools:
        if tool.type not in own:
            request.state.ignored_fields.append(f"tools[{printable(str(tool.type))}]")
    return [tool for tool in tools if tool.type in own]
