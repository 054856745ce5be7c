"""Finds all mistakes of a configuration, each with its path and a suggestion.

    Object contains unknown field `cahce` - at `$.prefill`; did you mean `cache`?

Rules of a whole branch, such as that two ports differ, are checked once each of its settings is
valid.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal

import msgspec

ROOT = "$"
KEY = "key` in `"
"""The text before the path of an object with an unknown key."""
MAX_ELSEWHERE = 2
_TOLD = re.compile(r"(?P<text>.*?)(?: - at `(?P<where>.*)`)?", re.DOTALL)
"""An error message of msgspec: the path is missing for the root."""


@dataclass(frozen=True, slots=True)
class _Mistake:
    text: str
    path: str
    hint: str = ""


def mistakes_in(raw: Any, root: type) -> list[str]:
    """The mistakes in `raw`, in the order of the file; a value that one option has set for both
    pools is one mistake."""
    paths_by_mistake: dict[tuple[str, str], list[str]] = {}
    for mistake in _Tree(root).of_branch(raw, root, ROOT):
        paths_by_mistake.setdefault((mistake.text, mistake.hint), []).append(mistake.path)
    return [f"{text}{_at(paths)}{hint}" for (text, hint), paths in paths_by_mistake.items()]


def _at(paths: list[str]) -> str:
    return "" if paths == [ROOT] else f" - at {' and '.join(f'`{path}`' for path in paths)}"


@dataclass(frozen=True, slots=True)
class _Tree:
    root: type

    def of_branch(self, raw: Any, kind: type, path: str) -> Iterator[_Mistake]:
        """The mistakes of one branch and of its sub-branches."""
        if not isinstance(raw, dict):
            yield from _misfits(raw, kind, path)
            return
        hints = _hints(kind)
        is_right = True
        for key, value in raw.items():
            if not isinstance(key, str):
                found = list(_misfits({key: value}, kind, path))
            elif key in hints:
                found = list(self.of_setting(value, hints[key], f"{path}.{key}"))
            else:
                found = [self.unknown(key, list(hints), path)]
            is_right = is_right and not found
            yield from found
        if is_right:
            yield from _misfits(raw, kind, path)

    def of_setting(self, value: Any, hint: Any, path: str) -> Iterator[_Mistake]:
        named = node_by_name(hint)
        item: Any = next(iter(typing.get_args(hint)), None)
        if has_fields(hint):
            yield from self.of_branch(value, hint, path)
        elif named is not None and _has_names(value):
            for name, entry in value.items():
                yield from self.of_branch(entry, named, f"{path}.{name}")
        elif isinstance(value, list) and has_fields(item):
            for number, entry in enumerate(value):
                yield from self.of_branch(entry, item, f"{path}[{number}]")
        elif isinstance(value, float) and not math.isfinite(value):  # not representable in JSON
            yield _Mistake(f"Expected a finite number, got {value}", path)
        else:
            for found in _misfits(value, hint, path):
                yield replace(found, hint=_choices(value, hint))

    def unknown(self, key: str, names: list[str], path: str) -> _Mistake:
        meant = get_close_matches(key, names, n=1) or self.elsewhere(key)
        hint = f"; did you mean {' or '.join(f'`{name}`' for name in meant)}?" if meant else ""
        return _Mistake(f"Object contains unknown field `{key}`", path, hint)

    def elsewhere(self, key: str) -> list[str]:
        """Settings of the same name in other branches, if few: the key may be on the wrong
        level."""
        found = [path for path in _paths(self.root, "") if path.rpartition(".")[2] == key]
        return found if len(found) <= MAX_ELSEWHERE else []


def node_by_name(hint: Any) -> type | None:
    """The value type of a mapping whose keys the operator chooses, if it is a branch."""
    args = typing.get_args(hint)
    return args[1] if typing.get_origin(hint) is dict and has_fields(args[1]) else None


def has_fields(node: Any) -> bool:
    return dataclasses.is_dataclass(node) or (
        isinstance(node, type) and issubclass(node, msgspec.Struct)
    )


def _has_names(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(name, str) for name in value)


def _misfits(raw: Any, kind: Any, path: str) -> Iterator[_Mistake]:
    """msgspec's error for the value; it stops at the first."""
    try:
        msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        told = _TOLD.fullmatch(str(error))
        assert told is not None, "the pattern takes any text"
        inner = told["where"] or ROOT
        where = path + inner.removeprefix(KEY).removeprefix(ROOT)
        text = f"{told['text']} for a key" if inner.startswith(KEY) else told["text"]
        yield _Mistake(text, where)


def _choices(value: Any, hint: Any) -> str:
    """The allowed words, which msgspec's message does not list."""
    if typing.get_origin(hint) is not Literal or not isinstance(value, str):
        return ""
    words = [word for word in typing.get_args(hint) if isinstance(word, str)]
    meant = get_close_matches(value, words, n=1)
    return f"; did you mean `{meant[0]}`?" if meant else f"; there are {', '.join(words)}"


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """The type hints of a class, cached: the registry and `baton k8s follow` read documents
    often."""
    return typing.get_type_hints(kind, include_extras=True)


def _paths(kind: type, prefix: str) -> Iterator[str]:
    for name, hint in typing.get_type_hints(kind).items():
        yield f"{prefix}{name}"
        if has_fields(hint):
            yield from _paths(hint, f"{prefix}{name}.")
