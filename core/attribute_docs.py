"""Docstrings of attributes, which Python does not keep: they are read off the source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from itertools import pairwise

FOREIGN = frozenset({"builtins", "msgspec"})


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
