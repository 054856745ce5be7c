"""Renders messages to a prompt with the model's Jinja chat template.

Semantics are those of transformers' `apply_chat_template`; the template is not trusted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2.exceptions import TemplateError
from jinja2.utils import Namespace

from baton.core.errors import CheckpointError, InvalidRequest
from baton.gateway.text.template_limits import check_separators
from baton.gateway.text.template_sandbox import BoundedEnvironment

MAX_INDENT = 16
MAX_REASON = 500
"""Characters of a template's own error message that are passed to the caller."""
RESERVED_NAMES = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message"})
PAIR_ROLES = ("query", "document")
"""The roles of a pair's two texts in reranker templates."""
ARGUMENTS_AS_JSON = re.compile(r"arguments['\"]?\]?\s*\|\s*tojson")
ARGUMENTS_AS_TEXT = re.compile(r"arguments['\"]?\]?\s*[+~]|[+~]\s*[\w.\[\]'\"]+arguments\b")


class ChatTemplate:
    """One model's template. Renders on one thread at a time."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        *,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Raises CheckpointError if `source` is not a template."""
        self.source = source
        self.has_text_arguments = bool(
            ARGUMENTS_AS_TEXT.search(source) and not ARGUMENTS_AS_JSON.search(source)
        )
        """Whether the template concatenates tool-call arguments, which must then be text."""
        self.has_tools = "tools" in source
        """Whether it describes the tools."""
        self._environment = _environment(now)
        self._special_tokens = dict(special_tokens)
        try:
            self._template = self._environment.from_string(source)
        except _COMPILING_FAULTS as error:
            raise CheckpointError(f"the chat template cannot be compiled: {error}") from error

    @staticmethod
    def takes_pairs(source: str) -> bool:
        """Whether it is a reranker's template, for a query and a document."""
        return all(re.search(rf"['\"]{role}['\"]", source) for role in PAIR_ROLES)

    def render_pair(self, query: str, document: str, instruction: str | None) -> str:
        """The prompt for a pair. Raises InvalidRequest as `render` does."""
        messages = [
            {"role": role, "content": text}
            for role, text in zip(PAIR_ROLES, (query, document), strict=True)
        ]
        variables = {}
        if instruction is not None:
            messages.insert(0, {"role": "system", "content": instruction})
            variables["instruction"] = instruction
        return self.render(messages, variables=variables)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt; `variables` are the template's own switches. Raises InvalidRequest if the
        template refuses the messages, fails on them, or exceeds the limits of time or memory.
        """
        extra = dict(variables or {})
        if taken := RESERVED_NAMES.intersection(extra):
            raise InvalidRequest(
                f"{min(taken)} cannot be set as a variable of the chat template",
                field="chat_template_kwargs",
            )
        self._environment.start()
        try:
            return self._template.render(
                {"documents": None, **self._special_tokens, **extra},
                messages=[dict(message) for message in messages],
                tools=None if tools is None else [dict(tool) for tool in tools],
                add_generation_prompt=add_generation_prompt,
            )
        except _TEMPLATE_FAULTS as error:
            reason = str(error)[:MAX_REASON]
            message = f"the model's chat template does not take these messages: {reason}"
            raise InvalidRequest(message, field="messages") from error

    def render_open(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt up to the end of the last message's text, for the model to continue."""
        last = str(messages[-1].get("content") or "")
        text = self.render(messages, tools=tools, add_generation_prompt=False, variables=variables)
        bare = last.strip()
        begin = text.rfind(bare) if bare else -1
        if begin < 0:
            raise InvalidRequest(
                "the last message cannot be continued: the chat template does not render its text",
                field="messages",
            )
        end = begin + len(bare)
        trailing = last[len(last.rstrip()) :]
        return text[: end + len(trailing)] if text.startswith(trailing, end) else text[:end]


# Errors that template expressions can raise besides Jinja's own.
_TEMPLATE_FAULTS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


# Jinja compiles to Python, which limits the nesting of loops.
_COMPILING_FAULTS = (TemplateError, SyntaxError, MemoryError, RecursionError, ValueError)


class _SafeNamespace(Namespace):
    """Refuses names with a leading underscore, which lead to Python internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _refuse_private(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise TemplateError(f"a namespace cannot have an attribute {name!r}")


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter would escape HTML."""
    if indent is not None and indent > MAX_INDENT:
        raise TemplateError(f"tojson indents by at most {MAX_INDENT}")
    check_separators(separators or ())
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _environment(now: Callable[[], datetime]) -> BoundedEnvironment:
    environment = BoundedEnvironment()
    environment.add_filter("tojson", _tojson)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    environment.globals["namespace"] = _SafeNamespace
    return environment
