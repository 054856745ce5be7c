"""What clients call the switches of chat templates: reasoning or none, how much, how many words.

enable_thinking: true               Qwen, GLM        --+
thinking: true, {"type": ...}       DeepSeek, Anthropic +--> enable_thinking, thinking
reasoning: {"enabled": true, ...}   OpenRouter        --+
reasoning: {"effort": ...}, reasoning_effort           ----> reasoning_effort
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from baton.core.errors import InvalidRequest
from baton.gateway.http.schemas import ChatBody

IS_ON_BY_TYPE = {"enabled": True, "adaptive": True, "auto": True, "disabled": False}


def template_variables(body: ChatBody, template: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Variables for the template, and the fields that it has none for: they have no effect.

    `chat_template_kwargs` go before the rest. Raises InvalidRequest.
    """
    variables: dict[str, Any] = {}
    ignored: list[str] = []
    for field, wanted in _switches(body):
        known = {name: value for name, value in wanted.items() if name in template}
        if not known:
            ignored.append(field)
        variables |= wanted
    return variables | (body.chat_template_kwargs or {}), tuple(ignored)


def _switches(body: ChatBody) -> Iterator[tuple[str, dict[str, Any]]]:
    reasoning = body.reasoning or {}
    if (effort := reasoning.get("effort")) is not None:
        yield "reasoning", {"reasoning_effort": effort}
    if (is_on := reasoning.get("enabled")) is not None:
        yield "reasoning", _thinking(is_on, "reasoning.enabled")
    if body.reasoning_effort is not None:
        yield "reasoning_effort", {"reasoning_effort": body.reasoning_effort}
    if body.thinking is not None:
        yield "thinking", _thinking(_is_on(body.thinking), "thinking")
    if body.enable_thinking is not None:
        yield "enable_thinking", _thinking(body.enable_thinking, "enable_thinking")
    if body.verbosity is not None:
        yield "verbosity", {"verbosity": body.verbosity}
    if body.prediction is not None:
        yield "prediction", {}


def _thinking(is_on: object, field: str) -> dict[str, Any]:
    if not isinstance(is_on, bool):
        raise InvalidRequest(f"{field} must be true or false", field=field)
    return {"enable_thinking": is_on, "thinking": is_on}


def _is_on(thinking: bool | Mapping[str, Any]) -> bool:
    if isinstance(thinking, bool):
        return thinking
    kind = thinking.get("type")
    if not isinstance(kind, str) or kind not in IS_ON_BY_TYPE:
        raise InvalidRequest(
            f"thinking.type is {kind!r}; known are {', '.join(IS_ON_BY_TYPE)}",
            field="thinking.type",
        )
    return IS_ON_BY_TYPE[kind]
