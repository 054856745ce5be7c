"""Maps clients' fields to variables of chat templates: thinking, its effort, verbosity.

enable_thinking: true               Qwen, GLM        --+
thinking: true, {"type": ...}       DeepSeek, Anthropic +--> enable_thinking, thinking
reasoning: {"enabled": true, ...}   OpenRouter        --+
reasoning: {"effort": ...}, reasoning_effort           ----> reasoning_effort
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from baton.core.errors import InvalidRequest
from baton.gateway.http.completions.schemas import ChatBody

Switch = tuple[str, dict[str, Any]]
"""A field of a body, and the variables that it sets."""


class ThinkingSwitches(Protocol):
    """The fields of a body that switch thinking."""

    @property
    def enable_thinking(self) -> bool | None: ...
    @property
    def thinking(self) -> bool | dict[str, Any] | None: ...


IS_ON_BY_TYPE = {"enabled": True, "adaptive": True, "auto": True, "disabled": False}


def template_variables(
    switches: Iterable[Switch], given: Mapping[str, Any] | None, template: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Variables for the template, and the fields without effect, for which it has none. Variables
    `given` by their own names override the others.
    """
    variables: dict[str, Any] = {}
    ignored: list[str] = []
    for field, wanted in switches:
        known = {name: value for name, value in wanted.items() if name in template}
        if not known:
            ignored.append(field)
        variables |= wanted
    return {**variables, **(given or {})}, tuple(ignored)


def chat_switches(body: ChatBody) -> Iterator[Switch]:
    """Raises InvalidRequest."""
    reasoning = body.reasoning or {}
    if (effort := reasoning.get("effort")) is not None:
        yield "reasoning", {"reasoning_effort": effort}
    if (is_on := reasoning.get("enabled")) is not None:
        yield "reasoning", thinking_variables(is_on, "reasoning.enabled")
    if body.reasoning_effort is not None:
        yield "reasoning_effort", {"reasoning_effort": body.reasoning_effort}
    if (budget := reasoning.get("max_tokens")) is not None:
        yield "reasoning.max_tokens", {"thinking_budget": budget}
    yield from thinking_switches(body)
    if body.verbosity is not None:
        yield "verbosity", {"verbosity": body.verbosity}


def thinking_switches(body: ThinkingSwitches) -> Iterator[Switch]:
    """Raises InvalidRequest."""
    if body.thinking is not None:
        yield "thinking", thinking_variables(_is_on(body.thinking), "thinking")
        budget = body.thinking.get("budget_tokens") if isinstance(body.thinking, dict) else None
        if budget is not None:
            yield "thinking.budget_tokens", {"thinking_budget": budget}
    if body.enable_thinking is not None:
        yield "enable_thinking", thinking_variables(body.enable_thinking, "enable_thinking")


def with_documents(
    variables: Mapping[str, Any], documents: Sequence[Mapping[str, Any]] | None, template: str
) -> dict[str, Any]:
    """Raises InvalidRequest: documents that the model is not shown would be missed."""
    if not documents:
        return dict(variables)
    if "documents" not in template:
        raise InvalidRequest(
            "documents: the model's chat template does not use them; put them into messages",
            field="documents",
        )
    return {"documents": documents, **variables}


def thinking_variables(is_on: object, field: str) -> dict[str, Any]:
    """Raises InvalidRequest."""
    if not isinstance(is_on, bool):
        raise InvalidRequest(f"{field} must be true or false", field=field)
    return {"enable_thinking": is_on, "thinking": is_on}


def _is_on(thinking: bool | Mapping[str, Any]) -> bool:
    if isinstance(thinking, bool):
        return thinking
    return is_on_by_type(thinking.get("type"))


def is_on_by_type(kind: object) -> bool:
    """`thinking.type`. Raises InvalidRequest."""
    if not isinstance(kind, str) or kind not in IS_ON_BY_TYPE:
        raise InvalidRequest(
            f"thinking.type is {kind!r}; known are {', '.join(IS_ON_BY_TYPE)}",
            field="thinking.type",
        )
    return IS_ON_BY_TYPE[kind]
