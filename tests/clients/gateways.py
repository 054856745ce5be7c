"""Gateways before scripted agents, in a process of their own.

Prints one line of JSON, by model, when they listen; ends with its standard input.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from tests.clients.scripted_agent import MAX_MODEL_LEN, AgentDispatcher
from tests.gateway.chat_models import HERMES, chat_model
from tests.gateway.scripted import BOS, EOS, Serving, serving

from baton.gateway.text.chat_templates import ChatTemplates
from baton.gateway.text.model_files import DEFAULT

DEMO = Path(__file__).parents[2] / "examples" / "demo_model" / "checkpoint"
KEY = "sk-of-the-clients"
"""Wanted by the gateways: a client that does not show its key gets 401."""


# Templates have lines of their own length.
# ruff: noqa: E501
MISTRAL = """\
{{ bos_token }}{% for m in messages %}
{% if m.role == 'system' %}[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]
{% elif m.role == 'user' %}
{% if tools and loop.last %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
[INST]{{ m.content }}[/INST]
{% elif m.tool_calls %}{{ m.content or '' }}[TOOL_CALLS][{% for c in m.tool_calls %}
{% if c.id is not defined or c.id | length != 9 %}
{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}
{% if not loop.last %}, {% endif %}{% endfor %}]{{ eos_token }}
{% elif m.role == 'assistant' %}{{ m.content }}{{ eos_token }}
{% elif m.role == 'tool' %}
[TOOL_RESULTS]{"content": {{ m.content | tojson }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]
{% endif %}{% endfor %}
{% if tools and messages[-1].role != 'user' %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]
{% endif %}"""
QWEN3_CODER = """\
{% if tools %}<|im_start|>system
You have access to the following functions:

<tools>{% for t in tools %}
<function>
<name>{{ t.function.name }}</name>
<description>{{ t.function.description or '' }}</description>
<parameters>{{ t.function.parameters | tojson }}</parameters>
</function>{% endfor %}
</tools>
If you call one, write:
<tool_call>
<function=example_function_name>
<parameter=example_parameter_1>
value_1
</parameter>
</function>
</tool_call><|im_end|>
{% endif %}{% for m in messages %}
{% if m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ m.content or '' }}{% for c in m.tool_calls or [] %}

<tool_call>
<function={{ c.function.name }}>
{% for key, value in c.function.arguments.items() %}
<parameter={{ key }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor %}
</function>
</tool_call>{% endfor %}<|im_end|>
{% endif %}{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
FORMATS = {"knows-tools": "hermes", "mistral": "mistral", "qwen3-coder": "qwen3_coder"}
"""How models write calls, by their names; others as Hermes."""


def templates() -> dict[str, str]:
    """Of models whose chat templates know tools, each in a way of its own, and of the demo, whose
    knows none."""
    demo = json.loads((DEMO / "tokenizer_config.json").read_text())["chat_template"]
    return {
        "knows-tools": HERMES,
        "mistral": MISTRAL,
        "qwen3-coder": QWEN3_CODER,
        "knows-none": demo,
    }


def endpoints(gateway: Serving) -> dict[str, str]:
    return {"url": gateway.url, "grpc": gateway.grpc_target}


async def main() -> None:
    async with AsyncExitStack() as stack:
        said = {}
        for name, template in templates().items():
            model = replace(
                chat_model(template),
                name=name,
                context_len=MAX_MODEL_LEN,
                chat_templates=ChatTemplates.compile(
                    {DEFAULT: template}, {"bos_token": BOS, "eos_token": EOS}
                ),
            )
            gateway = await stack.enter_async_context(
                serving(
                    dispatcher=AgentDispatcher(FORMATS.get(name, "hermes")),
                    model=model,
                    api_keys=frozenset({KEY}),
                )
            )
            said[name] = endpoints(gateway)
        print(json.dumps(said), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
