"""Grammars that cannot be followed are refused, with the reason, and hostile ones are bounded."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tests import tiny_tokenizers
from tokenizers import Tokenizer

from baton.core.errors import InvalidRequest
from baton.core.sampling import Grammar, GrammarKind
from baton.engine.grammar.grammar_check import MAX_SOURCE_BYTES, GrammarChecker
from baton.engine.grammar.structured_output import LlGuidanceCompiler
from baton.kernels.sampling.token_mask import num_words, unpack_mask

JSON, REGEX, LARK = GrammarKind.JSON_SCHEMA, GrammarKind.REGEX, GrammarKind.LARK


def checker() -> GrammarChecker:
    return GrammarChecker(tiny_tokenizers.byte_level)


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        (
            JSON,
            '{"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {}}}',
        ),
        (JSON, "{}"),
        (REGEX, r"\d{3}-\d{4}"),
        (REGEX, ""),
        (LARK, 'start: "a" start | "b"'),
        (LARK, "start: <|call|> %json {}"),
    ],
)
def test_a_sound_grammar_passes(kind: GrammarKind, source: str) -> None:
    checker().check(Grammar(kind, source))


@pytest.mark.parametrize(
    ("kind", "source", "reason"),
    [
        (JSON, '{"type": ', "not a JSON schema"),
        (JSON, "[1]", "not a JSON schema"),
        (JSON, '{"type": "strin"}', "Invalid type: strin"),
        (JSON, '{"if": {}, "then": {}}', "Unimplemented keys"),
        (JSON, '{"type": "string", "minLength": 5, "maxLength": 3}', "minLength"),
        (JSON, '{"$ref": "https://example.com/schema.json"}', "not present"),
        (JSON, '{"$ref": "#"}', "no sentence"),
        (REGEX, "a(b", "unclosed group"),
        (REGEX, r"(a)\1", "backreference"),
        (REGEX, r"[^\s\S]", "no sentence"),
        (REGEX, "a{60000}", "written out"),
        (LARK, "start: missing", "missing"),
        (LARK, "start: <|nosuch|>", "nosuch"),
        (LARK, 'rule: "a"', "start"),
        (LARK, "\n\n", "Empty grammar"),
    ],
)
def test_an_unsound_grammar_is_refused_with_its_reason(
    kind: GrammarKind, source: str, reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason) as refusal:
        checker().check(Grammar(kind, source), field="response_format")

    assert refusal.value.field == "response_format"
    assert len(refusal.value.message) < 1000


def test_a_grammar_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(InvalidRequest, match="at most"):
        checker().check(Grammar(REGEX, "a" * (MAX_SOURCE_BYTES + 1)))


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        (LARK, "start: A\nA: " + " & ".join(f"/.*a{i}.*/" for i in range(30))),
        (JSON, json.dumps({"allOf": [{"pattern": f"a{i}"} for i in range(30)]})),
        (
            JSON,
            json.dumps({"allOf": [{"pattern": f"a{i}"} for i in range(30)]}).replace(
                "pattern", "\\u0070attern"
            ),
        ),
    ],
)
def test_intersections_of_many_expressions_are_refused_unread(
    kind: GrammarKind, source: str
) -> None:
    """llguidance would be at them for hours."""
    with pytest.raises(InvalidRequest, match="at most"):
        checker().check(Grammar(kind, source))


def test_patterns_of_properties_are_no_intersection() -> None:
    properties = {f"p{i}": {"type": "string", "pattern": f"^a{i}$"} for i in range(30)}

    checker().check(Grammar(JSON, json.dumps({"properties": properties})))


def test_a_tokenizer_that_cannot_be_constrained_is_the_reason() -> None:
    words = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}
    whole_words = GrammarChecker(lambda: json.dumps({"version": "1.0", "model": words}))

    with pytest.raises(InvalidRequest, match="this model's tokenizer"):
        whole_words.check(Grammar(REGEX, "a"))


def test_the_tokenizer_is_read_once_however_many_ask_at_once() -> None:
    reads: list[None] = []

    def read_tokenizer() -> str:
        reads.append(None)
        return tiny_tokenizers.byte_level()

    shared = GrammarChecker(read_tokenizer)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: shared.check(Grammar(REGEX, f"a{{{n}}}")), range(1, 20)))

    assert len(reads) == 1


def test_checking_needs_no_torch() -> None:
    script = (
        "import sys\n"
        "from baton.core.sampling import Grammar, GrammarKind\n"
        "from baton.engine.grammar.grammar_check import GrammarChecker\n"
        "from tests.tiny_tokenizers import byte_level\n"
        "GrammarChecker(byte_level).check(Grammar(GrammarKind.REGEX, 'a'))\n"
        "print('torch' in sys.modules)"
    )

    run = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": "src:."},
        capture_output=True,
        text=True,
        check=True,
    )

    assert run.stdout.strip() == "False"


def test_without_llguidance_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)

    with pytest.raises(InvalidRequest, match="pip install llguidance"):
        checker().check(Grammar(REGEX, "a"))


def doubling(reference: str, end: str, times: int) -> dict[str, Any]:
    """Definitions that say 2^times things in little space."""
    steps = {f"d{i}": {reference: [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(times)}
    return {"$ref": "#/$defs/d0", "$defs": {**steps, f"d{times}": {"type": end}}}


CHAINED = {"items": 1100, "allOf": 1500}
"""Definitions that refer to each other: so many fit into a grammar."""


def chain(keyword: str) -> str:
    num_steps = CHAINED[keyword]
    steps: dict[str, Any] = {}
    for i in range(num_steps):
        further = {"$ref": f"#/$defs/{i + 1}"}
        steps[str(i)] = {keyword: [further] if keyword == "allOf" else further}
    schema = {"$ref": "#/$defs/0", "$defs": {**steps, str(num_steps): {}}}
    return json.dumps(schema, separators=(",", ":"))


HOSTILE = {
    "chain of items": (JSON, chain("items")),
    "chain of allOf": (JSON, chain("allOf")),
    "chain of rules": (
        LARK,
        "start: r0\n" + "".join(f"r{i}:r{i + 1}\n" for i in range(4500)) + 'r4500:"a"',
    ),
    "chain of negations": (
        LARK,
        "start: A0\n" + "".join(f"A{i}:~A{i + 1}\n" for i in range(4500)) + 'A4500:"a"',
    ),
    "deep schema": (JSON, '{"items":' * 6000 + "{}" + "}" * 6000),
    "doubling allOf": (JSON, json.dumps(doubling("allOf", "string", 40))),
    "doubling anyOf": (JSON, json.dumps(doubling("anyOf", "array", 40))),
    "endless reference": (JSON, '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}'),
    "products of anyOf": (
        JSON,
        json.dumps(
            {
                "allOf": [
                    {"anyOf": [{"properties": {f"p{i}{j}": {"type": "null"}}} for j in range(4)]}
                    for i in range(12)
                ]
            }
        ),
    ),
    "huge enum": (JSON, json.dumps({"enum": [f"v{i}" for i in range(5000)]})),
    "many properties": (
        JSON,
        json.dumps({"type": "object", "properties": {f"p{i}": {} for i in range(3500)}}),
    ),
    "long string": (JSON, '{"type": "string", "minLength": 100000000}'),
    "long array": (JSON, '{"type": "array", "minItems": 10000000, "items": {"type": "null"}}'),
    "costly pattern": (JSON, json.dumps({"type": "string", "pattern": "^(.*a.{50}){20}$"})),
    "large divisor": (JSON, '{"type": "integer", "multipleOf": 999999937}'),
    "deep regex": (REGEX, "(" * 30_000 + "a" + ")" * 30_000),
    "deep stars": (REGEX, "(" * 200 + "a*" + ")*" * 200),
    "long repeats": (REGEX, "a{1,100000000}"),
    "nested repeats": (REGEX, "((((a{0,999}){0,999}){0,999}){0,999}){0,999}"),
    "exponential automaton": (REGEX, ".*a.{200}b.{200}"),
    "backtracking": (REGEX, "(a|aa)*" * 30 + "b"),
    "unicode classes": (REGEX, r"(\w{1,500}\s\p{L}{1,500}){1,500}"),
    "many alternatives": (REGEX, "|".join(f"w{i}x" for i in range(7000))),
    "deep rules": (LARK, "start: " + "(" * 20_000 + '"a"' + ")" * 20_000),
    "ambiguous rules": (LARK, "start: start start | /[a-z ]/"),
    "doubling rules": (
        LARK,
        "start: r0\n" + "".join(f"r{i}: r{i + 1} r{i + 1}\n" for i in range(60)) + 'r60: "a"',
    ),
    "rules of nothing": (
        LARK,
        "start: r0\n" + "".join(f"r{i}: r{i + 1}? r{i + 1}?\n" for i in range(90)) + 'r90: "a"?',
    ),
    "doubling terminals": (
        LARK,
        "start: A0\n" + "".join(f"A{i}: A{i + 1} A{i + 1}\n" for i in range(60)) + 'A60: "a"',
    ),
    "intersections": (LARK, "start: A\nA: /(.*a.{20})/ & /(.*b.{20})/ & ~/(.*c.{20})/"),
    "many words": (LARK, "start: " + " | ".join(f'"w{i}"' for i in range(6000))),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_is_refused_or_followed_but_never_hangs(name: str) -> None:
    """The test's time limit is the assertion: unbounded, most of these would take for ever."""
    tokenizer_json = tiny_tokenizers.byte_level()
    vocab_size = tiny_tokenizers.vocab_size(tokenizer_json)
    eos = tiny_tokenizers.token_id(tokenizer_json, tiny_tokenizers.EOS)
    compiler = LlGuidanceCompiler(
        GrammarChecker(lambda: tokenizer_json, [eos]), vocab_size=vocab_size, eos_token_ids=[eos]
    )
    mask, rng = torch.empty(num_words(vocab_size), dtype=torch.int32), random.Random(name)

    try:
        matcher = compiler.compile(Grammar(*HOSTILE[name]))
        for _ in range(200):
            matcher.fill_mask(mask)
            tokens = unpack_mask(mask.unsqueeze(0), vocab_size)[0].nonzero().flatten().tolist()
            assert tokens
            matcher.accept([rng.choice([token for token in tokens if token != eos] or [eos])])
    except InvalidRequest as refusal:
        assert len(refusal.message) < 1000


def test_a_grammar_is_read_once_and_each_request_starts_at_its_beginning() -> None:
    one = checker()
    grammar = Grammar(REGEX, "ab")
    first = one.start(grammar)
    tokenizer = Tokenizer.from_str(tiny_tokenizers.byte_level())
    token_a, token_b = tokenizer.encode("ab", add_special_tokens=False).ids
    assert first.consume_token(token_a)

    second = one.start(grammar)

    assert first.consume_token(token_b) and first.is_accepting()
    assert not second.validate_tokens([token_b]) and second.validate_tokens([token_a, token_b]) == 2
