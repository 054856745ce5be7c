"""Parser of Llama 4's calls in Python: [f(city="Paris", days=3), g()].

Only at the very beginning of an output. Llama 4 may also write JSON like Llama 3, also after its
marks: <|python_start|>content<|python_end|>{"name": "f", "parameters": {}}{...}
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from baton.gateway.output.formats import CallFormat, content, separate_calls
from baton.gateway.output.pieces import PieceWriter
from baton.gateway.output.text_reader import Malformed, Parse, TextReader
from baton.gateway.output.typed_arguments import Schemas, TypedArguments, value_of

PYTHON_BEGIN, PYTHON_END = "<|python_start|>", "<|python_end|>"
MARKERS = (PYTHON_BEGIN, PYTHON_END)

NAME = re.compile(r"[\w.:/-]+")
PLAIN = re.compile(r"[^'\"()\[\]{}\\]+")
IN_QUOTES = {quote: re.compile(rf"[^\\{quote}]+") for quote in "'\""}
JSON_WORDS = {"true": True, "false": False, "null": None}
OPENING, CLOSING = "([{", ")]}"


def llama4(schemas: Schemas) -> CallFormat:
    """`schemas`: of the arguments, by tool. Without the mark, only calls of these tools count."""

    def parse(reader: TextReader, out: PieceWriter) -> Parse[None]:
        is_marked = yield from reader.leads_with(PYTHON_BEGIN)
        if (yield from reader.peek_after_space()) == "[":
            yield from _list(reader, out, schemas, is_marked=is_marked)
        else:
            if not is_marked:
                reader.rewind()
            reader.release()
            yield from separate_calls(reader, out, schemas, is_marked=is_marked)
        if is_marked and (yield from reader.copy_until((PYTHON_END,), out.content)):
            yield from reader.drop_space()
            yield from separate_calls(reader, out, schemas, is_marked=True)
        yield from content(reader, out)

    return parse


def _list(
    reader: TextReader,
    out: PieceWriter,
    schemas: Schemas,
    *,
    is_marked: bool,
) -> Parse[None]:
    accepts: Callable[[str], bool] = bool if is_marked else schemas.__contains__
    try:
        yield from _calls(reader, out, schemas, accepts)
    except Malformed:
        begins = tuple(f"[{name}(" for name in schemas)
        is_sure = is_marked or out.num_calls > 0 or reader.held.startswith(begins)
        if is_sure and reader.is_cut_short:
            reader.release()
        else:
            reader.give_back(out.content)


def _calls(
    reader: TextReader,
    out: PieceWriter,
    schemas: Schemas,
    accepts: Callable[[str], bool],
) -> Parse[None]:
    yield from reader.expect("[")
    while True:
        name = yield from _name(reader)
        if not accepts(name) or (yield from reader.peek()) != "(":
            raise Malformed
        text = yield from _in_brackets(reader)
        _write(out, name, text, schemas.get(name))
        reader.release()
        yield from reader.skip_space()
        if not (yield from reader.take_word(",")):
            break
    yield from reader.expect("]")
    reader.release()


def _name(reader: TextReader) -> Parse[str]:
    yield from reader.skip_space()
    name = ""
    while (yield from reader.peek()) and (run := reader.take_run(NAME)):
        name += run
    return name


def _in_brackets(reader: TextReader) -> Parse[str]:
    """The text up to the closing bracket. Raises Malformed."""
    text, depth = "", 0
    while True:
        char = yield from reader.peek()
        if not char:
            raise Malformed
        if run := reader.take_run(PLAIN):
            text += run
            continue
        if char in IN_QUOTES:
            text += yield from _in_quotes(reader, char)
            continue
        text += reader.take()
        depth += (char in OPENING) - (char in CLOSING)
        if depth == 0:
            return text


def _in_quotes(reader: TextReader, quote: str) -> Parse[str]:
    text = reader.take()
    while True:
        char = yield from reader.peek()
        if not char:
            raise Malformed
        if run := reader.take_run(IN_QUOTES[quote]):
            text += run
            continue
        text += reader.take()
        if char == quote:
            return text
        if (yield from reader.peek()):  # what a backslash stands before
            text += reader.take()


def _write(out: PieceWriter, name: str, text: str, schema: Mapping[str, Any] | None) -> None:
    """Raises Malformed."""
    try:
        source = f"f{text}"
        called = ast.parse(source, mode="eval").body
        if not isinstance(called, ast.Call) or called.args:
            raise Malformed
        values, written = dict[str, Any](), dict[str, str]()
        for each in called.keywords:
            if each.arg:
                own_text = ast.get_source_segment(source, each.value) or ""
                value = values[each.arg] = ast.literal_eval(_JsonWords().visit(each.value))
                written[each.arg] = _in_json(value, own_text)
        "".join(written.values()).encode()  # an unpaired surrogate cannot be sent
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise Malformed from error
    if len(written) != len(called.keywords):  # `**` arguments, or a repeated name
        raise Malformed
    out.start_call(name)
    arguments = TypedArguments(out, schema)
    for key, value in values.items():
        arguments.begin(key)
        # Templates show the model all values in quotes, whatever their types.
        types = arguments.types(key)
        is_quoted = isinstance(value, str) and types and "string" not in types
        arguments.write(value_of(value, types) if is_quoted else written[key])
    arguments.end()


def _in_json(value: object, own_text: str) -> str:
    """Raises ValueError if it cannot be JSON."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:  # a number beyond a float's range: a client may read it all the same
        json.loads(own_text)
        return own_text


class _JsonWords(ast.NodeTransformer):
    """Replaces true, false and null with Python's words."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(JSON_WORDS[node.id]) if node.id in JSON_WORDS else node
