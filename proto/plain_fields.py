"""The plain fields of a message, which travel by name and are called the same in our own types."""

from __future__ import annotations

from typing import Any, NamedTuple

from google.protobuf.message import Message


class PlainFields(NamedTuple):
    """The names of a message's plain fields: those that are numbers or text, and those that are
    tuples of them.

    They travel by name, and are called the same in our own type.
    """

    single: tuple[str, ...]
    repeated: tuple[str, ...]


def plain_fields_of(kind: type[Message]) -> PlainFields:
    plain = [field for field in kind.DESCRIPTOR.fields if field.message_type is None]
    return PlainFields(
        single=tuple(field.name for field in plain if not field.is_repeated),
        repeated=tuple(field.name for field in plain if field.is_repeated),
    )


def values_by_name(of: object, fields: PlainFields) -> dict[str, Any]:
    values = {name: getattr(of, name) for name in fields.single}
    for name in fields.repeated:
        values[name] = tuple(getattr(of, name))
    return values
