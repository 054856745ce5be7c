"""A model's chat templates by name, and the choice of one for a request.

    default     conversations
    tool_use    conversations with tools, where the model has one for them: Hermes 2 Pro, Command R
    others      only if a request names them

The choice is transformers'. A template set by the operator is the only one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from baton.core.errors import CheckpointError, InvalidConfig, InvalidRequest
from baton.gateway.text.chat_template import ChatTemplate
from baton.gateway.text.model_files import DEFAULT, is_inline

TOOL_USE = "tool_use"
FIELD = "chat_template"
MAX_REQUEST_CHARS = 1 << 16
"""The most characters of a request's own template, twice the longest of known models."""
MAX_KEPT = 8
"""Cached templates of requests: clients send the same one each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplates:
    by_name: Mapping[str, ChatTemplate] = field(default_factory=dict)
    special_tokens: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def compile(
        cls,
        source_by_name: Mapping[str, str],
        special_tokens: Mapping[str, str],
        *,
        instead: str = "",
    ) -> ChatTemplates:
        """`instead`: the setting gateway.chat_template.

        Raises CheckpointError, naming the template, if one is invalid, and InvalidConfig if the
        configured one cannot be read.
        """
        compiled: dict[str, ChatTemplate] = {}
        if instead:
            source_by_name = {DEFAULT: _read_template(instead)}
        for name, source in source_by_name.items():
            try:
                compiled[name] = ChatTemplate(source, special_tokens)
            except CheckpointError as error:
                which = "" if name == DEFAULT else f" {name}"
                remedy = "set gateway.chat_template to one that can"
                raise CheckpointError(f"chat template{which}: {error}; {remedy}") from error
        return cls(by_name=compiled, special_tokens=special_tokens)

    def choose(self, *, has_tools: bool) -> ChatTemplate | None:
        if has_tools and (template := self.by_name.get(TOOL_USE)) is not None:
            return template
        return self.by_name.get(DEFAULT)

    def asked_for(self, wanted: str, *, is_trusted: bool) -> ChatTemplate:
        """The template that a request asks for: one of the model's by name, or the request's own.
        Raises InvalidRequest for an unknown name if requests' templates are not trusted.
        """
        if (template := self.by_name.get(wanted)) is not None:
            return template
        if not is_trusted:
            names = " or ".join(map(repr, self.by_name)) or "none"
            raise InvalidRequest(
                f"{FIELD} is not the name of a template of this model ({names}), and templates of "
                "requests are off here (gateway.trust_request_chat_template); leave it out: "
                "chat_template_kwargs sets the switches of the model's own",
                field=FIELD,
            )
        if len(wanted) > MAX_REQUEST_CHARS:
            raise InvalidRequest(
                f"{FIELD} has {len(wanted)} characters; at most {MAX_REQUEST_CHARS} can be",
                field=FIELD,
            )
        try:
            return _compiled(wanted, tuple(sorted(self.special_tokens.items())))
        except CheckpointError as error:
            raise InvalidRequest(f"{FIELD}: {error}", field=FIELD) from error


def _read_template(setting: str) -> str:
    """Read the setting gateway.chat_template: a file, or the template itself. Raises
    InvalidConfig."""
    if is_inline(setting):
        return setting
    try:
        return Path(setting).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(
            f"gateway.chat_template: cannot read {setting} ({error}); give a Jinja file that the "
            "gateway can read, or the template itself"
        ) from error


@lru_cache(MAX_KEPT)
def _compiled(source: str, special_tokens: tuple[tuple[str, str], ...]) -> ChatTemplate:
    return ChatTemplate(source, dict(special_tokens))
