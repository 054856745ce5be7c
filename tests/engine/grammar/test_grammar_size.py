"""How long a grammar's repetitions are, written out; too long ones are refused before they run."""

from __future__ import annotations

import json

import pytest

from baton.core.errors import InvalidRequest
from baton.core.sampling import Grammar, GrammarKind
from baton.engine.grammar.grammar_size import MAX_SIZE, TOO_LARGE, check_size, expression_size

JSON, REGEX, LARK = GrammarKind.JSON_SCHEMA, GrammarKind.REGEX, GrammarKind.LARK
BOMB = "(((a{1000}){1000}){1000})"


@pytest.mark.parametrize(
    ("expression", "size"),
    [
        ("", 0),
        ("abc", 3),
        ("a{3}", 3),
        ("a{2,}", 2),
        ("a{,5}b", 6),
        ("x{2}{3}", 6),
        ("(a|bc){2,10}d*", 31),
        (r"\p{Greek}{5}", 5),
        (r"\x{1F600}\{9\}", 4),
        ("[a-z{9}[:alpha:]]{4}b", 5),
        (r"[\]{9}]{4}", 4),
        ("(a{100}){100}", 10_000),
        (BOMB, TOO_LARGE),
        ("a{99999999999999999999}", TOO_LARGE),
        ("(" * 10_000 + "a" + "){2}" * 10_000, TOO_LARGE),
        (")a{4}", 4),
    ],
)
def test_repetitions_are_written_out(expression: str, size: int) -> None:
    assert expression_size(expression) == size


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        (REGEX, BOMB),
        (JSON, json.dumps({"anyOf": [{"items": {"pattern": BOMB}}]})),
        (JSON, json.dumps({"patternProperties": {BOMB: {}}})),
        (JSON, '{"pattern": "((a\\u007b1000}){1000}){1000}"}'),
        (LARK, f"start: /{BOMB}/"),
        (LARK, f"start: LONG\nLONG: /{BOMB}/"),
        (LARK, 'start: A\nA: B{1000}\nB: C{1000}\nC: "a"{1000}'),
        (LARK, 'start: A\nC: "a"~1000\nB: C~1..1000\nA: (B B)~1000'),
        (LARK, 'start: %json {"pattern": "((a\\u007b1000}){1000}){1000}"}'),
    ],
)
def test_a_few_bytes_that_ask_for_all_memory_are_refused(kind: GrammarKind, source: str) -> None:
    with pytest.raises(InvalidRequest, match=f"longer than {MAX_SIZE}"):
        check_size(Grammar(kind, source))


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        (REGEX, "([a-z]{1,40} ){1,500}"),
        (JSON, '{"items": {"minLength": 100000}, "minItems": 100000}'),
        (JSON, '{"properties": {"pattern": {"type": "string"}}}'),
        (JSON, "not JSON"),
        (LARK, 'start: line{1,1000}\nline: /[^\\n]{1,200}/ "\\n"'),
        (LARK, 'start: A\nA: "a" B?\nB: "b" A?'),
        (LARK, "\n\n"),
    ],
)
def test_what_is_long_but_sound_passes(kind: GrammarKind, source: str) -> None:
    check_size(Grammar(kind, source))
