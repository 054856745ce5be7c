"""Documentation of the configuration tree: every setting's type, default and docstring.

Help texts and the JSON schema come from here, so the tree is the only place where a setting is
explained.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import msgspec

from baton.core.attribute_docs import attribute_docs
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.config.mistakes import node_by_name

SECRETS = (
    "gateway.api_keys",
    "gateway.operator_keys",
    "gateway.cache_secret",
    "gateway.tenants.*.api_keys",
)
"""Settings that are never shown. `*` is any name."""


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
    """The JSON schema of the tree as JSON or YAML, with the docstrings as descriptions."""
    schema = msgspec.json.schema(DeploymentConfig)
    for node in _node_types(DeploymentConfig()):
        definition = schema["$defs"][node.__name__]
        definition["additionalProperties"] = False  # parse_config checks this for dataclasses, too
        for name, doc in attribute_docs(node).items():
            if doc and name in definition["properties"]:
                definition["properties"][name]["description"] = doc
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def is_node(value: object) -> bool:
    """Whether the value is a branch of settings."""
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
