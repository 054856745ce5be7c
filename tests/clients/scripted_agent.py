"""A model that plays an agent: what it says next follows from the prompt that it is shown.

    no tool is offered      ANSWER
    nothing is known        "Let me look." and get_weather("Oslo")
    Oslo                    get_weather("Rome") and get_weather("Lima"), in one answer
    Oslo, Rome, Lima        get_weather("Cairo")
    all four                "Oslo=1234 Rome=... Lima=... Cairo=..."

A tool answers "Oslo=1234", with a number that only the client knows: the last answer shows that
each result came back to the model, whatever the client wrapped around it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.gateway.scripted import (
    Script,
    ScriptedDispatcher,
    ScriptedGeneration,
    eos_token,
    text_of,
    text_tokenizer,
    tokens_of,
)
from tokenizers import Tokenizer

from baton.core.sampling import Grammar
from baton.engine.grammar.grammar_check import GrammarChecker
from baton.gateway.requests.generations.generation import Generation

ANSWER = "the quick brown fox — 日本 🦊"
"""Some characters take several tokens each: a client that decodes deltas alone would break them."""
TURNS = (("Oslo",), ("Rome", "Lima"), ("Cairo",))
CITIES = tuple(city for turn in TURNS for city in turn)
READING = re.compile(rf"\b({'|'.join(CITIES)})=(\d+)")
NAME = re.compile(r'(?:"name": ?"|<name>)([\w-]+)[<"]')
TOOL = "get_weather"
FINAL_TOOL = "final_answer"
"""Frameworks that have it take no other last word."""
MAX_MODEL_LEN = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What the model means to say."""

    text: str = ""
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    offered: tuple[str, ...] = ()
    """Tools: one of them takes what is to be said, where a call is forced."""

    def forms(self, call_format: str) -> Sequence[str]:
        """Ways to write it: freely, as a forced call of any tool, or of a named one; as JSON."""
        if not self.calls:
            said = {"text": self.text}
            named = ([{"name": name, "parameters": said}] for name in self.offered)
            return [self.text, *(json.dumps(one, ensure_ascii=False) for one in (said, *named))]
        calls = [{"name": name, "arguments": dict(given)} for name, given in self.calls]
        written = _WAYS[call_format](calls)
        forced = [{"name": c["name"], "parameters": c["arguments"]} for c in calls]
        first = dict(self.calls[0][1])
        return (f"{self.text}{written}", json.dumps(forced), json.dumps(first))


def _in_tags(call: Mapping[str, Any]) -> str:
    values = "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in call["arguments"].items()
    )
    return f"<tool_call>\n<function={call['name']}>\n{values}</function>\n</tool_call>"


_WAYS: Mapping[str, Callable[[Sequence[Mapping[str, Any]]], str]] = {
    "hermes": lambda calls: "\n".join(f"<tool_call>\n{json.dumps(c)}\n</tool_call>" for c in calls),
    "mistral": lambda calls: f"[TOOL_CALLS]{json.dumps(calls)}",
    "qwen3_coder": lambda calls: "\n".join(map(_in_tags, calls)),
}


def turn_of(prompt: str) -> Turn:
    """What comes behind `prompt`."""
    if TOOL not in prompt:
        return Turn(text=ANSWER, offered=tuple(NAME.findall(prompt)))
    known = dict(READING.findall(prompt))
    for cities in TURNS:
        if missing := [city for city in cities if city not in known]:
            text = "" if known else "Let me look.\n"
            return Turn(text=text, calls=tuple((TOOL, {"city": city}) for city in missing))
    last = " ".join(f"{city}={known[city]}" for city in CITIES)
    if FINAL_TOOL in prompt:
        return Turn(calls=((FINAL_TOOL, {"answer": last}),))
    return Turn(text=last)


class AgentDispatcher(ScriptedDispatcher):
    """Writes each turn in the first form that the request's grammar takes, token by token."""

    def __init__(self, call_format: str) -> None:
        super().__init__(max_model_len=MAX_MODEL_LEN)
        self._call_format = call_format
        self._tokenizer = Tokenizer.from_str(text_tokenizer().to_json())
        self._grammars = GrammarChecker(self._tokenizer.to_str, [eos_token()])

    async def start(self, generation: Generation) -> ScriptedGeneration:
        turn = turn_of(text_of(generation.prompt))
        grammar = generation.sampling.grammar
        forms = [
            text
            for text in turn.forms(self._call_format)
            if grammar is None or self._fits(grammar, text)
        ]
        assert forms, f"{turn} cannot be said in {grammar}"
        return ScriptedGeneration(
            self, generation, Script(tokens=tokens_of(forms[0]), ends_with_eos=True)
        )

    def _fits(self, grammar: Grammar, text: str) -> bool:
        matcher = self._grammars.start(grammar)
        tokens = tokens_of(text)
        return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())
