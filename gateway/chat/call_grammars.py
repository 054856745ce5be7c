"""Grammars of tool calls in each model's format: in Lark's notation, with a rule `calls`.

    called   a call in JSON: its name, and arguments that fit the schema
    call     the same from its mark to its end, in the model's own format

After a mark, only a call that fits its schema can follow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from baton.gateway.chat.first_calls import harmony_output, llama3_output, llama4_output
from baton.gateway.chat.functions import NO_PARAMETERS
from baton.gateway.chat.gemma_grammar import gemma_calls
from baton.gateway.chat.lark import BREAK, NotHeld, in_regex, json_of, quoted, tokens, without
from baton.gateway.chat.tagged_calls import dsml, tagged_calls
from baton.gateway.chat.tool_definitions import ToolUse
from baton.gateway.grammars.answer_grammar import NO_SPECIAL, written_mark
from baton.gateway.output import formats, harmony, xml_calls
from baton.gateway.output import gemma_calls as gemma
from baton.gateway.output.formats import HERMES_BEGIN, HERMES_END
from baton.gateway.output.xml_calls import DSML

SpecialByMark = Mapping[str, int]
"""The marks that are special tokens of the model, which text cannot spell."""

COMMA = '", "'
LINE = "\n"
DSML_BEGIN = f"<{DSML}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writing:
    """The parts of a call format after the mark that begins a call."""

    begin: str
    rest: str
    rules: tuple[str, ...] = ()
    between: str | None = None
    """The text before the mark of a further call; None where `rest` holds all calls."""
    bare_begin: str = ""
    """How a call begins when the model forgets the mark above; parsers accept it as one."""
    bare_rest: str = ""


def calls_grammar(
    name: str, tools: ToolUse, special_by_mark: SpecialByMark = NO_SPECIAL
) -> str | None:
    """Calls alone, in the format `name`, for `answer_grammar`. None for an unknown format, or a
    schema that the rules cannot express. Raises InvalidRequest."""
    try:
        return _calls_alone(name, tools, special_by_mark)
    except (NotHeld, RecursionError):
        return None


def optional_calls(
    name: str,
    tools: ToolUse,
    special_by_mark: SpecialByMark = NO_SPECIAL,
    other_special: Collection[int] = (),
) -> str | None:
    """A whole output: any text, and calls in the format `name`. None as above. `other_special` are
    special tokens that the model may write between its words, such as the marks of a reasoning
    format that is not known. Raises InvalidRequest.
    """
    try:
        return _whole_output(name, tools, special_by_mark, other_special)
    except (NotHeld, RecursionError):
        return None


def _calls_alone(name: str, tools: ToolUse, special_by_mark: SpecialByMark) -> str | None:
    if name == "llama3":
        more = ' ("; " call)*' if tools.is_parallel else ""
        return f"calls: call{more}\ncall: {json_of(tools.call_schema('parameters'))}"
    if name == "harmony":
        return _harmony_call(tools, special_by_mark)
    writing = _writing(name, tools, special_by_mark)
    if writing is None:
        return None
    call = f"{_begin(writing.begin, special_by_mark)} {writing.rest}"
    has_more = tools.is_parallel and writing.between is not None
    more = f" ({writing.between} call)*" if has_more else ""
    return "\n".join((f"calls: call{more}", f"call: {call}", *writing.rules))


def _whole_output(
    name: str, tools: ToolUse, special_by_mark: SpecialByMark, other_special: Collection[int]
) -> str | None:
    if name == "harmony":
        return harmony_output(tools, special_by_mark)
    if name in ("llama3", "llama4"):
        write = llama3_output if name == "llama3" else llama4_output
        return write(tools, special_by_mark, other_special)
    writing = _writing(name, tools, special_by_mark)
    if writing is None:
        return None
    rests = {writing.begin: writing.rest}
    if writing.bare_begin:
        rests[writing.bare_begin] = writing.bare_rest
    spelled = [begin for begin in rests if not _is_special(begin, special_by_mark)]
    lines = []
    for index, (begin, rest) in enumerate(rests.items()):
        if begin == DSML_BEGIN and DSML in special_by_mark:
            before, _ = begin.split(DSML)
            lines.append(f"text{index}: BEGUN {written_mark(DSML, special_by_mark)}")
            lines.append(f"BEGUN: /(?s:.*){in_regex(before)}/")
        elif begin in special_by_mark:
            lines.append(f"text{index}: FREE {written_mark(begin, special_by_mark)}")
        else:
            others = [other for other in spelled if other != begin]
            lines.append(f"text{index}[suffix={quoted(begin)}]: {without(others)}")
        lines.append(f"call{index}: {rest}")
    some = "*" if tools.is_parallel and writing.between is not None else "?"
    called = " | ".join(f"text{index} call{index}" for index in range(len(rests)))
    lines += [f"FREE: {without(spelled)}", *writing.rules]
    marked = ""
    if other_special:
        marked = "marked* "
        lines.append(f"marked: FREE {tokens(other_special)}")
    return "\n".join((f"calls: ({marked}({called})){some} {marked}FREE", *lines))


def _is_special(begin: str, special_by_mark: SpecialByMark) -> bool:
    return begin in special_by_mark or (begin == DSML_BEGIN and DSML in special_by_mark)


def _begin(begin: str, special_by_mark: SpecialByMark) -> str:
    if begin == DSML_BEGIN and DSML in special_by_mark:
        before, _ = begin.split(DSML)
        return f"{quoted(before)} {written_mark(DSML, special_by_mark)}"
    return written_mark(begin, special_by_mark)


def _writing(name: str, tools: ToolUse, special_by_mark: SpecialByMark) -> _Writing | None:
    write = _WRITINGS.get(name)
    return None if write is None else write(tools, special_by_mark)


def _several(tools: ToolUse, item: str, between: str) -> str:
    return f"{item} ({between} {item})*" if tools.is_parallel else item


def _list(tools: ToolUse) -> str:
    """The rest of a list of calls, after its opening bracket."""
    return f'{_several(tools, "called", COMMA)} "]"'


def _hermes(tools: ToolUse, special_by_mark: SpecialByMark) -> _Writing:
    rest = f'"\\n" called "\\n" {written_mark(HERMES_END, special_by_mark)}'
    return _Writing(begin=HERMES_BEGIN, rest=rest, rules=_called(tools), between='"\\n"')


def _mistral(tools: ToolUse, special_by_mark: SpecialByMark) -> _Writing:
    begin = formats.MISTRAL_CALLS
    if formats.MISTRAL_ARGUMENTS not in special_by_mark:
        return _Writing(begin=begin, rest=f'/ ?/ "[" {_list(tools)}', rules=_called(tools))
    call_id = f"({written_mark(formats.MISTRAL_ID, special_by_mark)} /[a-zA-Z0-9_-]{{1,64}}/)?"
    between = f" {call_id} {written_mark(formats.MISTRAL_ARGUMENTS, special_by_mark)} "
    return _Writing(begin=begin, rest="named", rules=_by_name(tools, "", between, ""), between="")


def _phi(tools: ToolUse, special_by_mark: SpecialByMark) -> _Writing:
    end = written_mark(formats.PHI_CALLS_END, special_by_mark)
    return _Writing(
        begin=formats.PHI_CALLS,
        rest=f'"[" {_list(tools)} {end}',
        rules=_called(tools),
        bare_begin=formats.PHI_LIST,
        bare_rest=_list(tools),
    )


def _kimi(tools: ToolUse, special_by_mark: SpecialByMark) -> _Writing:
    call, call_end, arguments, end = (
        written_mark(mark, special_by_mark)
        for mark in (
            formats.KIMI_CALL,
            formats.KIMI_CALL_END,
            formats.KIMI_ARGUMENTS,
            formats.KIMI_CALLS_END,
        )
    )
    rest_of_one = f"named {call_end}"
    between = f' ":" /[0-9]{{1,4}}/ {arguments} '
    return _Writing(
        begin=formats.KIMI_CALLS,
        rest=f"{_several(tools, 'one', '')} {end}",
        rules=(f"one: {call} {rest_of_one}", *_by_name(tools, "functions.", between, "")),
        bare_begin=formats.KIMI_CALL,
        bare_rest=f"{rest_of_one} one*" if tools.is_parallel else rest_of_one,
    )


def _deepseek(tools: ToolUse, special_by_mark: SpecialByMark) -> _Writing:
    separator, call, call_end, end = (
        written_mark(mark, special_by_mark)
        for mark in (
            formats.SEPARATOR,
            formats.CALL_BEGIN,
            formats.CALL_END,
            formats.CALLS_END,
        )
    )
    rest_of_one = f"(named | fenced) {call_end}"
    rules = (
        f"one: {call} {rest_of_one}",
        f'fenced: "function" {separator} named_in_fence "\\n```"',
        *_by_name(tools, "", f" {separator} ", ""),
        *_by_name(tools, "", ' "\\n```json\\n" ', "_in_fence", has_arguments=False),
    )
    return _Writing(
        begin=formats.CALLS_BEGIN,
        rest=f"{_several(tools, 'one', BREAK)} {end}",
        rules=rules,
        bare_begin=formats.CALL_BEGIN,
        bare_rest=f"{rest_of_one} ({BREAK} one)*" if tools.is_parallel else rest_of_one,
    )


def _gemma(tools: ToolUse, special_by_mark: SpecialByMark) -> _Writing | None:
    rules = gemma_calls(tools, special_by_mark)
    if rules is None:
        return None
    begins = gemma.CALL_BEGINS
    ends = [written_mark(end, special_by_mark) for end in gemma.CALL_ENDS]
    return _Writing(
        begin=begins[0],
        rest=f"gemma_a {ends[0]}",
        rules=rules,
        between="",
        bare_begin=begins[1],
        bare_rest=f"gemma_b {ends[1]}",
    )


def _qwen3_coder(tools: ToolUse, special_by_mark: SpecialByMark) -> _Writing | None:
    tagged = tagged_calls("qwen3_coder", tools, special_by_mark)
    if tagged is None:
        return None
    begin, end = quoted(f"{LINE}{xml_calls.FUNCTION}"), written_mark(HERMES_END, special_by_mark)
    return _Writing(
        begin=HERMES_BEGIN,
        rest=f'{begin} tagged "\\n" {end}',
        rules=tagged,
        between='"\\n"',
        bare_begin=xml_calls.FUNCTION,
        bare_rest="tagged",
    )


def _glm(tools: ToolUse, special_by_mark: SpecialByMark) -> _Writing | None:
    tagged = tagged_calls("glm", tools, special_by_mark)
    if tagged is None:
        return None
    rest = f"tagged {written_mark(HERMES_END, special_by_mark)}"
    return _Writing(begin=HERMES_BEGIN, rest=rest, rules=tagged, between='"\\n"')


def _deepseek_v32(tools: ToolUse, special_by_mark: SpecialByMark) -> _Writing | None:
    """After the common prefix of all DSML tags: a list of calls, or a bare call."""
    tagged = tagged_calls("deepseek_v32", tools, special_by_mark)
    if tagged is None:
        return None
    lists = [
        f"{quoted(begin.removeprefix(DSML_BEGIN))} {BREAK} {_several(tools, 'one', BREAK)} {BREAK} "
        f"{dsml(end, special_by_mark)}"
        for begin, end in zip(xml_calls.DSML_CALLS, xml_calls.DSML_CALLS_END, strict=True)
    ]
    bare = f"{quoted(xml_calls.DSML_CALL.removeprefix(DSML_BEGIN))} tagged"
    one = f"one: {dsml(xml_calls.DSML_CALL, special_by_mark)} tagged"
    return _Writing(
        begin=DSML_BEGIN, rest=f"({' | '.join((*lists, bare))})", rules=(one, *tagged), between=""
    )


_WRITINGS: Mapping[str, Callable[[ToolUse, SpecialByMark], _Writing | None]] = {
    "generic": _hermes,
    "hermes": _hermes,
    "mistral": _mistral,
    "phi": _phi,
    "kimi": _kimi,
    "deepseek": _deepseek,
    "gemma": _gemma,
    "qwen3_coder": _qwen3_coder,
    "glm": _glm,
    "deepseek_v32": _deepseek_v32,
}


def _called(tools: ToolUse) -> tuple[str, ...]:
    return (f"called: {json_of(tools.call_schema('arguments'))}",)


def _by_name(
    tools: ToolUse, prefix: str, between: str, suffix: str, *, has_arguments: bool = True
) -> tuple[str, ...]:
    """Rules of a name and its arguments: `named`, or `named` and a suffix."""
    indices = range(len(tools.functions))
    lines = [f"named{suffix}: " + " | ".join(f"named{suffix}{index}" for index in indices)]
    for index, function in enumerate(tools.functions):
        name = quoted(prefix + function.name)
        lines.append(f"named{suffix}{index}: {name}{between or ' '}arguments{index}")
        if has_arguments:
            lines.append(f"arguments{index}: {json_of(function.parameters or NO_PARAMETERS)}")
    return tuple(lines)


def _harmony_call(tools: ToolUse, special_by_mark: SpecialByMark) -> str:
    """One call, after which the output ends."""
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
        lines.append(f"arguments{index}: {json_of(function.parameters or NO_PARAMETERS)}")
    return "\n".join(lines)
