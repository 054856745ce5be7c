"""The types that a schema gives an argument."""

from __future__ import annotations

from typing import Any

from baton.gateway.output import typed_arguments
from baton.gateway.output.typed_arguments import types_of


def test_a_schema_that_refers_to_itself_is_looked_at_once(monkeypatch: Any) -> None:
    looked: list[str] = []
    referred = typed_arguments._referred
    monkeypatch.setattr(
        typed_arguments, "_referred", lambda name, root: looked.append(name) or referred(name, root)
    )
    one = {"$ref": "#/$defs/A"}
    root = {"$defs": {"A": {"anyOf": [dict(one), dict(one), {"type": "integer"}]}}}

    assert types_of(one, root) == {"integer"}
    assert len(looked) == 3

    wide = {"anyOf": [dict(one) for _ in range(10_000)]}
    assert types_of({"allOf": [dict(wide) for _ in range(100)]}, root) == frozenset()
    assert len(looked) < 1_000
