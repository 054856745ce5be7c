"""Models whose chat templates know tools and reasoning, for tests with scripted outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import openai
from tests.gateway.scripted import (
    Script,
    ScriptedDispatcher,
    Serving,
    eos_token,
    make_model,
    tokens_of,
)

from baton.gateway.text.served_model import ServedModel

HERMES = (
    "{% if tools %}[tools]{% for t in tools %}{{ t | tojson }}{% endfor %}<tool_call>[/tools]"
    "{% endif %}{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}[call {{ c.function.name }}"
    " {{ c.function.arguments | tojson }}]{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
THINKING = HERMES + "{% if add_generation_prompt and thinks %}<think>\n{% endif %}"
PLAIN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"

USER = [{"role": "user", "content": "Weather in Paris?"}]
PARIS = '{"city": "Paris"}'
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def chat_model(template: str = HERMES, *, has_eos: bool = True) -> ServedModel:
    model = make_model(template=template)
    return replace(model, context_len=4096, eos_token_ids=(eos_token(),) if has_eos else ())


def said(text: str, *, ends: bool = True) -> Script:
    return Script(tokens=tokens_of(text), ends_with_eos=ends)


def call_text(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def dispatcher(script: Script) -> ScriptedDispatcher:
    return ScriptedDispatcher(script, max_model_len=4096)


def openai_of(gateway: Serving) -> Any:
    """Untyped: tests send what its types do not know."""
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
