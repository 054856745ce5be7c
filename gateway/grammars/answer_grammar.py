"""The grammar of a whole output: reasoning, then the answer by the caller's rule, or calls.

[<think> ... </think>]  answer | calls
[<|channel|>analysis ... <|start|>assistant]  <|channel|>final<|message|> answer | calls
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from baton.core.errors import InvalidRequest
from baton.core.sampling import Grammar, GrammarKind
from baton.engine.grammar.grammar_check import JSON_LAYOUT
from baton.gateway.grammars.structured_output import OutputRule
from baton.gateway.output.harmony import CHANNEL, END, MESSAGE, START
from baton.gateway.output.reasoning import THINK_BEGIN, THINK_END, ReasoningStart

NO_SPECIAL: Mapping[str, int] = MappingProxyType({})


def answer_grammar(
    rule: OutputRule,
    reasoning: ReasoningStart,
    calls: str | None = None,
    *,
    special_by_mark: Mapping[str, int] = NO_SPECIAL,
) -> Grammar:
    """`calls`: a rule of that name in Lark's notation, which may stand in place of the answer.
    `special_by_mark`: the marks that are special tokens of the model, which text cannot spell.
    Raises InvalidRequest for a rule that cannot be part of another grammar.
    """
    if reasoning is ReasoningStart.NOWHERE and calls is None:
        return rule.grammar
    if rule.grammar.kind is GrammarKind.LARK:
        if reasoning is not ReasoningStart.OPEN and calls is None:
            return rule.grammar  # the model reasons without a grammar; with one, it does not
        raise InvalidRequest(
            f"{rule.field}: the output may hold reasoning or tool calls as well, and a grammar "
            "would have to say how; use a JSON schema or a regex, or switch those off "
            "(chat_template_kwargs, tool_choice)",
            field=rule.field,
        )
    begin, rules = _reasoning(reasoning, special_by_mark)
    final = ""
    if reasoning is ReasoningStart.CHANNEL:
        channel, message = (written_mark(mark, special_by_mark) for mark in (CHANNEL, MESSAGE))
        final = f'{channel} "final" {message} '
    end = f"{final}answer" if calls is None else f"({final}answer | calls)"
    lines = [f"start: {begin}{end}", f"answer: {_body(rule.grammar)}", *rules]
    if calls is not None:
        lines.append(calls)
    return Grammar(GrammarKind.LARK, "\n".join(lines))


def free_grammar(
    calls: str, reasoning: ReasoningStart, *, special_by_mark: Mapping[str, int] = NO_SPECIAL
) -> Grammar:
    """The grammar of an output whose answer has no rule; `calls` is the rule of text and calls."""
    begin, rules = _reasoning(reasoning, special_by_mark)
    return Grammar(GrammarKind.LARK, "\n".join([f"start: {begin}calls", *rules, calls]))


def _reasoning(
    reasoning: ReasoningStart, special_by_mark: Mapping[str, int]
) -> tuple[str, tuple[str, ...]]:
    """The reasoning at the beginning of an output, in Lark's notation, with the rules that it
    needs."""
    mark_of_end = THINK_END
    match reasoning:
        case ReasoningStart.NOWHERE:
            return "", ()
        case ReasoningStart.CHANNEL:
            channel, message, start = (
                written_mark(mark, special_by_mark) for mark in (CHANNEL, MESSAGE, START)
            )
            begin = f'({channel} "analysis" {message} think {start} "assistant")? '
            mark_of_end = END
        case ReasoningStart.OPEN:
            begin = "think SPACE "
        case ReasoningStart.FIRST:
            begin = f"({written_mark(THINK_BEGIN, special_by_mark)} think SPACE)? "
    return begin, (_thought(mark_of_end, special_by_mark), r"SPACE: /\n{0,2}/")


def written_mark(mark: str, special_by_mark: Mapping[str, int]) -> str:
    """The mark in Lark's notation."""
    token = special_by_mark.get(mark)
    return f'"{mark}"' if token is None else f"<[{token}]>"


def _thought(mark: str, special_by_mark: Mapping[str, int]) -> str:
    """Any text up to the mark that ends it."""
    if mark in special_by_mark:
        return f"think: THOUGHT {written_mark(mark, special_by_mark)}\nTHOUGHT: /(?s:.*)/"
    return f'think[suffix="{mark}"]: /(?s:.*)/'


def json_body(schema: Any) -> str:
    """A schema in Lark's notation, with the same white space as a schema used alone."""
    if isinstance(schema, dict):
        schema = {**schema, "x-guidance": JSON_LAYOUT}
    # Outside of strings, `&` is an intersection, and intersections are counted.
    return "%json " + msgspec.json.encode(schema).decode().replace("&", r"\u0026")


def _body(grammar: Grammar) -> str:
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        return json_body(msgspec.json.decode(grammar.source))
    return f"/(?:{_between_slashes(grammar.source)})/"


def _between_slashes(regex: str) -> str:
    r"""The regex in Lark's notation, where slashes and line breaks are escaped: `a/b` becomes
    `a\/b`."""
    pieces = re.findall(r"\\.|[^\\]", regex, flags=re.DOTALL)
    return "".join({"/": r"\/", "\n": r"\n", "\\\n": r"\n"}.get(p, p) for p in pieces)
