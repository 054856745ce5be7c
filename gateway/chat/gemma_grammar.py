"""Grammar rules of Gemma's calls: nearly JSON, with marks around strings.

    call:f{city:<escape>Paris<escape>,days:3,near:[<escape>Lyon<escape>]}

Gemma 4 has other marks, so each rule is there for both: `a` is FunctionGemma's, `b` Gemma 4's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from baton.gateway.chat.functions import NO_PARAMETERS
from baton.gateway.chat.lark import ANY, NotHeld, quoted
from baton.gateway.chat.tool_definitions import ToolUse
from baton.gateway.chat.value_rules import ValueRules
from baton.gateway.grammars.answer_grammar import written_mark
from baton.gateway.output.gemma_calls import KEY, QUOTES

SpecialByMark = Mapping[str, int]
VARIANTS = "ab"


def gemma_calls(tools: ToolUse, special_by_mark: SpecialByMark) -> tuple[str, ...] | None:
    """`gemma_a` and `gemma_b`, each a call after its mark. None where a schema cannot be
    expressed."""
    variants = [*zip(VARIANTS, QUOTES, strict=True)]
    try:
        return tuple(
            line
            for variant, quote in variants
            for line in _calls(variant, quote, tools, special_by_mark)
        )
    except NotHeld:
        return None


def _calls(
    variant: str, quote: str, tools: ToolUse, special_by_mark: SpecialByMark
) -> Iterator[str]:
    """Raises NotHeld."""
    is_special = quote in special_by_mark
    mark = written_mark(quote, special_by_mark) if is_special else quoted(quote)
    text = f"text_{variant}"
    names = [f"gemma_{variant}{index}" for index in range(len(tools.functions))]
    yield f"gemma_{variant}: {' | '.join(names)}"
    if is_special:
        yield f"{text}: {mark} ANY_{variant.upper()} {mark}"
        yield f"ANY_{variant.upper()}: {ANY}"
    else:
        yield f"{text}: {mark} ended_{variant}"
        yield f"ended_{variant}[suffix={mark}]: {ANY}"
    for name, function in zip(names, tools.functions, strict=True):
        rules = ValueRules(
            root=function.parameters or NO_PARAMETERS,
            text=text,
            word=lambda word: f"{mark} {quoted(word)} {mark}",
            key=_key,
        )
        rules.object(f"{name}_o", rules.root)
        yield from rules.lines
        yield f"{name}: {quoted(f'call:{function.name}')} {name}_o"


def _key(name: str) -> str:
    if not KEY.fullmatch(name):
        raise NotHeld
    return quoted(f"{name}:")
