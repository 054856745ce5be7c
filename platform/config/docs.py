"""The configuration tree described: every setting with its type, its default and its docstring.

Python keeps no docstrings of attributes; they are read off the source. Help texts and the JSON
schema come from here, so the tree is the only place where a setting is explained.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec

from baton.platform.config.deployment import DeploymentConfig, node_by_name

SECRETS = (
    "gateway.api_keys",
    "gateway.operator_keys",
    "gateway.cache_secret",
    "gateway.tenants.*.api_keys",
)
"""Settings that are never shown. `*` is any name."""


FOREIGN = frozenset({"builtins", "msgspec"})


@dataclass(frozen=True, slots=True)
class Setting:
    """One leaf of the tree."""

    path: str
    """`gateway.port`"""
    type: Any
    default: Any
    doc: str
    """One line; may be empty."""


@cache
def settings() -> Mapping[str, Setting]:
    """All of them, by path, in the order of the tree."""
    return {setting.path: setting for setting in _walk(DeploymentConfig(), "")}


def json_schema() -> dict[str, Any]:
    """Of the tree as JSON or YAML, with the docstrings as descriptions."""
    schema = msgspec.json.schema(DeploymentConfig)
    for node in _node_types(DeploymentConfig()):
        definition = schema["$defs"][node.__name__]
        definition["additionalProperties"] = False  # parse_config sees to it for dataclasses, too
        for name, doc in attribute_docs(node).items():
            if doc and name in definition["properties"]:
                definition["properties"][name]["description"] = doc
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def attribute_docs(cls: type) -> Mapping[str, str]:
    """The docstring of each attribute of a class and its bases, on one line."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.partition(".")[0] not in FOREIGN:
            docs |= _own_docs(base)
    return docs


def _own_docs(cls: type) -> Iterator[tuple[str, str]]:
    [body] = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(body, ast.ClassDef)
    for statement, following in pairwise([*body.body, ast.Pass()]):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, " ".join(text.split())


def is_node(value: object) -> bool:
    """Whether it has settings of its own."""
    return isinstance(value, msgspec.Struct) or dataclasses.is_dataclass(value)


def is_secret(path: str) -> bool:
    return any(fnmatchcase(path, secret) for secret in SECRETS)


def _walk(node: Any, prefix: str) -> Iterator[Setting]:
    docs = attribute_docs(type(node))
    for name, hint in typing.get_type_hints(type(node), include_extras=True).items():
        value = getattr(node, name)
        if is_node(value):
            yield from _walk(value, f"{prefix}{name}.")
        else:
            yield Setting(f"{prefix}{name}", hint, value, docs.get(name, ""))


def _node_types(node: Any) -> Iterator[type]:
    yield type(node)
    for name, hint in typing.get_type_hints(type(node)).items():
        value = getattr(node, name)
        if is_node(value):
            yield from _node_types(value)
        elif (named := node_by_name(hint)) is not None:
            yield named
