"""Which format a model's calls have, read off its chat template."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from baton.gateway.chat.functions import NO_PARAMETERS, Function
from baton.gateway.chat.tool_definitions import ToolUse
from baton.gateway.grammars.answer_grammar import NO_SPECIAL, json_body, written_mark
from baton.gateway.output import formats, gemma_calls, harmony, python_calls, xml_calls
from baton.gateway.output.formats import HERMES_BEGIN, HERMES_END, CallFormat
from baton.gateway.output.typed_arguments import Schemas

GENERIC = "generic"
"""Nothing is known: generic_tools.py."""
MARKERS = (
    *formats.MARKERS,
    *harmony.MARKERS,
    *xml_calls.MARKERS,
    *python_calls.MARKERS,
    *gemma_calls.MARKERS,
)
"""Shown to the parsers even where they are special tokens."""
SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("harmony", (harmony.CHANNEL,)),
    ("qwen3_coder", (HERMES_BEGIN, xml_calls.FUNCTION, xml_calls.PARAMETER)),
    ("glm", (HERMES_BEGIN, xml_calls.KEY)),
    (GENERIC, (xml_calls.FUNCTION,)),  # one that nobody knows, whatever marks it has
    ("hermes", (HERMES_BEGIN,)),
    ("deepseek", (formats.CALLS_BEGIN,)),
    ("deepseek_v32", (xml_calls.DSML,)),
    ("mistral", (formats.MISTRAL_CALLS,)),
    ("kimi", (formats.KIMI_CALLS,)),
    ("phi", (formats.PHI_CALLS,)),
    ("phi", (formats.PHI_LIST,)),
    ("phi", ("<|tool|>",)),
    *(("gemma", (mark,)) for mark in gemma_calls.CALL_BEGINS),
    ("llama4", (python_calls.PYTHON_BEGIN,)),
    ("llama4", ("[func_name1(",)),
    ("llama3", (formats.LLAMA3_TAG,)),
    ("llama3", ('"parameters"', "ipython")),
)
"""What a chat template has of each format, all of it; the first that fits counts."""


FORMATS: dict[str, CallFormat] = {
    GENERIC: formats.hermes,
    "hermes": formats.hermes,
    "deepseek": formats.deepseek,
    "deepseek_v32": xml_calls.deepseek_v32,
    "mistral": formats.mistral,
    "kimi": formats.kimi,
    "phi": formats.phi,
    "harmony": harmony.messages,
}
TYPED_FORMATS: dict[str, Callable[[Schemas], CallFormat]] = {
    "llama3": formats.llama3,
    "llama4": python_calls.llama4,
    "qwen3_coder": xml_calls.qwen3_coder,
    "glm": xml_calls.glm,
    "gemma": gemma_calls.gemma,
}
"""Those that can only be read by whoever knows the tools."""


def format_name(parser: str, template: str) -> str:
    """`parser` is the setting gateway.tool_parser. `GENERIC` if no format is known."""
    if parser != "auto":
        return parser
    found = (name for name, signs in SIGNS if all(sign in template for sign in signs))
    return next(found, GENERIC)


def call_format(name: str, tools: Collection[Function]) -> CallFormat | None:
    """None if `name` is none."""
    if name in FORMATS:
        return FORMATS[name]
    typed = TYPED_FORMATS.get(name)
    return None if typed is None else typed({one.name: one.parameters for one in tools})


def calls_grammar(
    name: str, tools: ToolUse, special_by_mark: Mapping[str, int] = NO_SPECIAL
) -> str | None:
    """Calls as the model writes them, for `answer_grammar`. None where it is not known how."""
    separator = {"hermes": r'"\n"', "generic": r'"\n"', "llama3": '"; "'}.get(name)
    more = f" ({separator} call)*" if tools.is_parallel else ""
    match name:
        case "hermes" | "generic":
            called = json_body(tools.call_schema("arguments"))
            begin = written_mark(HERMES_BEGIN, special_by_mark)
            end = written_mark(HERMES_END, special_by_mark)
            call = f'call: {begin} "\\n" called "\\n" {end}'
            return f"calls: call{more}\n{call}\ncalled: {called}"
        case "llama3":
            called = json_body(tools.call_schema("parameters"))
            return f"calls: call{more}\ncall: {called}"
        case "harmony":
            return _harmony_call(tools, special_by_mark)
    return None


def optional_calls(tools: ToolUse, special_by_mark: Mapping[str, int] = NO_SPECIAL) -> str:
    """Any text, and calls in Hermes' format that fit their schemas: `calls` of a whole output."""
    called = json_body(tools.call_schema("arguments"))
    begin, end = (written_mark(mark, special_by_mark) for mark in (HERMES_BEGIN, HERMES_END))
    if HERMES_BEGIN in special_by_mark:  # which text cannot spell
        text, rest = f"text: ANY {begin}\nANY: /(?s:.*)/", "REST: /(?s:.*)/"
    else:
        text = f'text[suffix="{HERMES_BEGIN}"]: /(?s:.*)/'
        rest = f"REST: ~/(?s:.*){HERMES_BEGIN}(?s:.*)/"
    some = "(text call)*" if tools.is_parallel else "(text call)?"
    call = f'call: "\\n" called "\\n" {end}'
    return f"calls: {some} REST\n{text}\n{rest}\n{call}\ncalled: {called}"


def _harmony_call(tools: ToolUse, special_by_mark: Mapping[str, int]) -> str:
    """One alone: the model ends behind it."""
    channel, constrain, message = (
        written_mark(mark, special_by_mark)
        for mark in (harmony.CHANNEL, harmony.CONSTRAIN, harmony.MESSAGE)
    )
    lines = ["calls: " + " | ".join(f"call{index}" for index in range(len(tools.functions)))]
    for index, function in enumerate(tools.functions):
        header = (
            f'{channel} "commentary to=functions.{function.name} " {constrain} "json" {message}'
        )
        lines.append(f"call{index}: {header} arguments{index}")
        lines.append(f"arguments{index}: {json_body(function.parameters or NO_PARAMETERS)}")
    return "\n".join(lines)
