"""Finds duplicate keys in a YAML document, of which the later would silently override the
earlier."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MERGE = "tag:yaml.org,2002:merge"


def repeated_keys(document: bytes) -> Iterator[str]:
    """An error message for each duplicate key of a valid document."""
    nodes: list[tuple[yaml.Node | None, str]] = [(yaml.compose(document, Loader), "$")]
    seen: set[int] = set()
    for node, path in nodes:  # grows
        if id(node) in seen:  # an alias, which may be of what it is in
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            nodes.extend((item, f"{path}[{number}]") for number, item in enumerate(node.value))
        if not isinstance(node, yaml.MappingNode):
            continue
        mark_by_key: dict[str, yaml.Mark] = {}
        for key, value in node.value:
            nodes.append((value, f"{path}.{key.value}"))
            if not isinstance(key, yaml.ScalarNode) or key.tag == MERGE:
                continue
            mark = key.start_mark
            first = mark_by_key.setdefault(key.value, mark)
            if first is not mark:
                lines = f"lines {first.line + 1} and {mark.line + 1}"
                yield f"`{key.value}` is there twice, in {lines}; put them together - at `{path}`"
