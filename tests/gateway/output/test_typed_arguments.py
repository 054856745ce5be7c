"""The types that a schema gives an argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from baton.gateway.output import typed_arguments
from baton.gateway.output.pieces import PieceWriter
from baton.gateway.output.typed_arguments import TypedArguments, types_of


def test_a_schema_that_refers_to_itself_is_looked_at_once(monkeypatch: Any) -> None:
    looked: list[str] = []
    referred = typed_arguments._referred

    def counted(reference: str, root: Mapping[str, Any]) -> Any:
        looked.append(reference)
        return referred(reference, root)

    monkeypatch.setattr(typed_arguments, "_referred", counted)
    one = {"$ref": "#/$defs/A"}
    root = {"$defs": {"A": {"anyOf": [dict(one), dict(one), {"type": "integer"}]}}}

    assert types_of(one, root) == {"integer"}
    assert len(looked) == 3

    wide = {"anyOf": [dict(one) for _ in range(10_000)]}
    assert types_of({"allOf": [dict(wide) for _ in range(100)]}, root) == frozenset()
    assert len(looked) < 1_000


def test_types_come_from_all_places_that_give_an_argument_its_schema() -> None:
    text = {"type": "string"}
    open_ = {"properties": {"a": {"type": "integer"}}, "additionalProperties": text}
    for root in (open_, {"$ref": "#/$defs/all", "$defs": {"all": open_}}):
        arguments = TypedArguments(PieceWriter(), root)
        assert arguments.types("a") == {"integer"}
        assert arguments.types("b") == {"string"}
    assert TypedArguments(PieceWriter(), {"additionalProperties": text}).types("b") == {"string"}
