"""What is read of a choice whose output ends within a call, or at a stop string."""

from __future__ import annotations

import pytest

from baton.core.sampling import FinishReason
from baton.gateway.chat.choice_reader import ChoiceReader
from baton.gateway.output import formats, xml_calls
from baton.gateway.output.formats import CallFormat
from baton.gateway.output.output_parser import OutputParser
from baton.gateway.output.pieces import CallArguments, CallStart, Content
from baton.gateway.output.reasoning import ReasoningStart
from baton.gateway.text.output_text import TextDelta

F = {"f": None}
DSML = xml_calls.DSML
BEGUN = "<tool_call>\n<function=write>\n<parameter=text>\none line"
ENDED = f"{BEGUN}\n</parameter>\n</function>\n"
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}


@pytest.mark.parametrize(
    ("text", "stop", "arguments", "reason"),
    [
        (BEGUN, "\n\n", '{"text": "one line', "stop"),  # no call with half of its text
        (BEGUN, None, '{"text": "one line"}', "tool_calls"),  # the model has ended it so itself
        (ENDED, "</tool_call>", '{"text": "one line"}', "tool_calls"),
        (ENDED, "Observation:", '{"text": "one line"}', "tool_calls"),
    ],
)
def test_a_stop_string_within_a_value_leaves_the_call_cut_and_asks_for_no_result(
    text: str, stop: str | None, arguments: str, reason: str
) -> None:
    reader = ChoiceReader(OutputParser(xml_calls.qwen3_coder({"write": SCHEMA})))
    delta = TextDelta(text=text, tokens=(), finish_reason=FinishReason.STOP, stop_string=stop)

    pieces = reader.read(delta)

    assert reader.finish_reason(delta) == reason
    told = [piece.text for piece in pieces if isinstance(piece, CallArguments)]
    assert "".join(told) == arguments


@pytest.mark.parametrize(
    ("calls", "text", "stop"),
    [
        (formats.hermes, "<table><t", "d>"),
        (formats.hermes, "see <t", "\n"),
        (formats.forced_calls, "<t", "d>"),  # as reasoning may begin, too
    ],
)
def test_text_before_a_stop_string_keeps_an_end_that_a_call_could_begin_with(
    calls: CallFormat, text: str, stop: str
) -> None:
    reader = ChoiceReader(OutputParser(calls, reasoning=ReasoningStart.FIRST))

    pieces = reader.read(
        TextDelta(text=text, tokens=(), finish_reason=FinishReason.STOP, stop_string=stop)
    )

    assert "".join(piece.text for piece in pieces if isinstance(piece, Content)) == text


@pytest.mark.parametrize(
    ("calls", "text", "stop"),
    [
        (
            xml_calls.glm(F),
            "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n",
            "</tool_call>",
        ),
        (xml_calls.glm(F), "<tool_call>f\n", "</tool_call>"),
        (xml_calls.qwen3_coder(F), "<tool_call>\n<function=f>\n", "</function>"),
        (
            xml_calls.deepseek_v32,
            f'<{DSML}invoke name="f">\n'
            f'<{DSML}parameter name="a" string="false">1</{DSML}parameter>\n',
            xml_calls.DSML_CALL_END,
        ),
    ],
)
def test_a_call_that_is_stopped_at_its_own_end_is_whole_and_no_text(
    calls: CallFormat, text: str, stop: str
) -> None:
    reader = ChoiceReader(OutputParser(calls))

    start, *pieces = reader.read(
        TextDelta(text=text, tokens=(), finish_reason=FinishReason.STOP, stop_string=stop)
    )

    assert isinstance(start, CallStart) and start.name == "f"
    told = "".join(piece.text for piece in pieces if isinstance(piece, CallArguments))
    assert told == ('{"a": 1}' if "1" in text else "{}")
    assert not any(isinstance(piece, Content) for piece in pieces)
