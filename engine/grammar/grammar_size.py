"""Computes how long a grammar's expressions are once their counted repetitions are written out.

    a{3}  ->  aaa  ->  3        ((a{1000}){1000}){1000}  ->  1,000,000,000

llguidance builds automata of about that size before it checks any limit, so a few bytes from a
client could take all memory of a machine. Repetitions of grammar rules, such as items in JSON, are
stored as counts and cost nothing here. Sizes are upper bounds, as quotes and names are parsed
loosely, and are capped at `TOO_LARGE`. Does not import torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from baton.core.errors import InvalidRequest
from baton.core.sampling import Grammar, GrammarKind

MAX_SIZE = 50_000
TOO_LARGE = MAX_SIZE + 1
REMEDY = f"its repetitions, written out, are longer than {MAX_SIZE}; lower their counts"

_COUNT = re.compile(r"\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}|~\s*(\d+)(?:\s*\.\.\s*(\d+))?")
_ESCAPE = re.compile(r"\\(?:[pPxuU]\{[^}]*\}|.)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*")
_DEFINITION = re.compile(r"^[ \t]*[?!]?([A-Za-z_]\w*)[^:\n\"/]*:", re.MULTILINE)
_LITERAL = re.compile(r'"(?:\\.|[^"\\\n])*"|/((?:\\.|[^/\\\n])+)/')
_UNICODE_ESCAPE = re.compile(r"\\u00([0-7][0-9A-Fa-f])")


def check_size(grammar: Grammar) -> None:
    """Raise InvalidRequest if an expression of the grammar is larger than MAX_SIZE."""
    match grammar.kind:
        case GrammarKind.REGEX:
            sizes = iter((expression_size(grammar.source),))
        case GrammarKind.JSON_SCHEMA:
            sizes = map(expression_size, _patterns(grammar.source))
        case GrammarKind.LARK:
            sizes = iter(_definition_sizes(grammar.source).values())
    if any(size >= TOO_LARGE for size in sizes):
        raise InvalidRequest(f"the grammar cannot be followed: {REMEDY}")


def expression_size(source: str, size_by_name: dict[str, int] | None = None) -> int:
    """The size of a regular expression or, with `size_by_name`, of a definition in Lark's notation
    that uses these names."""
    totals, lasts = [0], [0]  # per open group: its size so far, and the size of its last part
    at = 0
    while at < len(source):
        if source[at] == "(":
            totals.append(0)
            lasts.append(0)
            at += 1
            continue
        if source[at] == ")" and len(totals) > 1:
            lasts.pop()
            size, at = totals.pop(), at + 1
        elif count := _COUNT.match(source, at):
            repeated = _times(lasts[-1], count)
            totals[-1] = min(totals[-1] - lasts[-1] + repeated, TOO_LARGE)
            lasts[-1] = repeated
            at = count.end()
            continue
        else:
            size, at = _part(source, at, size_by_name)
        totals[-1] = min(totals[-1] + size, TOO_LARGE)
        lasts[-1] = size if size else lasts[-1]
    return min(sum(totals), TOO_LARGE)


def _times(size: int, count: re.Match[str]) -> int:
    if any(number and len(number) > len(str(TOO_LARGE)) for number in count.groups()):
        return TOO_LARGE
    return min(size * max(1, *(int(number or 0) for number in count.groups())), TOO_LARGE)


def _part(source: str, at: int, size_by_name: dict[str, int] | None) -> tuple[int, int]:
    """The size of the element at `at`, and where it ends. Operators have size 0."""
    if escape := _ESCAPE.match(source, at):
        return 1, escape.end()
    if source[at] == "[" and size_by_name is None:
        return 1, _class_end(source, at)
    if size_by_name is not None and (name := _NAME.match(source, at)):
        return size_by_name.get(name[0], 1), name.end()
    return int(source[at] not in '*+?|)"/ \t\n'), at + 1


def _class_end(source: str, at: int) -> int:
    depth = 0
    while at < len(source):
        if escape := _ESCAPE.match(source, at):
            at = escape.end()
            continue
        depth += (source[at] == "[") - (source[at] == "]")
        at += 1
        if not depth:
            break
    return at


def _patterns(source: str) -> Iterator[str]:
    """All regular expressions in a JSON schema, at any depth; none if it is not valid JSON, which
    llguidance reports."""
    try:
        left = [json.loads(source)]
    except (ValueError, RecursionError):
        return
    while left:
        value = left.pop()
        if isinstance(value, dict):
            if isinstance(value.get("pattern"), str):
                yield value["pattern"]
            if isinstance(value.get("patternProperties"), dict):
                yield from value["patternProperties"]
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)


def _definition_sizes(source: str) -> dict[str, int]:
    """The size of each definition by name, with the definitions it uses written out; a recursive
    use counts as 1."""
    source = _UNICODE_ESCAPE.sub(lambda match: chr(int(match[1], 16)), source)  # in embedded JSON
    starts = list(_DEFINITION.finditer(source))
    ends = [start.start() for start in starts[1:]] + [len(source)] * bool(starts)
    body_by_name = {
        start[1]: source[start.end() : end] for start, end in zip(starts, ends, strict=True)
    }
    sizes: dict[str, int] = {}
    for first in body_by_name:
        path = [first]
        while path:
            name = path[-1]
            if name not in sizes:
                sizes[name] = 1  # for recursive uses
                used = dict.fromkeys(_NAME.findall(body_by_name[name]))
                path.extend(other for other in used if other in body_by_name and other not in sizes)
            else:
                sizes[name] = _definition_size(name, body_by_name[path.pop()], sizes)
    return sizes


def _definition_size(name: str, body: str, sizes: dict[str, int]) -> int:
    """The size of a terminal or of a definition with an embedded schema; for a rule, the size of
    its largest expression."""
    if name.isupper() or "%" in body:
        return expression_size(body, sizes)
    expressions = [match[1] for match in _LITERAL.finditer(body) if match[1]]
    return max(map(expression_size, expressions), default=1)
