"""What is read of a choice whose output ends within a call."""

from __future__ import annotations

import pytest

from baton.core.sampling import FinishReason
from baton.gateway.chat.choice_reader import ChoiceReader
from baton.gateway.output import xml_calls
from baton.gateway.output.output_parser import OutputParser
from baton.gateway.output.pieces import CallArguments
from baton.gateway.text.output_text import TextDelta

BEGUN = "<tool_call>\n<function=write>\n<parameter=text>\none line"
ENDED = f"{BEGUN}\n</parameter>\n</function>\n"
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}


@pytest.mark.parametrize(
    ("text", "stop", "arguments"),
    [
        (BEGUN, "\n\n", '{"text": "one line'),  # no call with half of its text
        (BEGUN, None, '{"text": "one line"}'),  # the model has ended it so itself
        (ENDED, "</tool_call>", '{"text": "one line"}'),
        (ENDED, "Observation:", '{"text": "one line"}'),
    ],
)
def test_a_stop_string_within_a_value_leaves_the_call_cut(
    text: str, stop: str | None, arguments: str
) -> None:
    reader = ChoiceReader(OutputParser(xml_calls.qwen3_coder({"write": SCHEMA})))

    pieces = reader.read(
        TextDelta(text=text, tokens=(), finish_reason=FinishReason.STOP, stop_string=stop)
    )

    told = [piece.text for piece in pieces if isinstance(piece, CallArguments)]
    assert "".join(told) == arguments
