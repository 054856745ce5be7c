"""Two gateways before a scripted agent, in a process of their own.

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

DEMO = Path(__file__).parents[2] / "examples" / "demo_model" / "checkpoint"
KEY = "sk-of-the-clients"
"""Wanted by the gateways: a client that does not show its key gets 401."""


def templates() -> dict[str, str]:
    """Of a model whose chat template knows tools, and of the demo, whose knows none."""
    demo = json.loads((DEMO / "tokenizer_config.json").read_text())["chat_template"]
    return {"knows-tools": HERMES, "knows-none": demo}


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
                    {"default": template}, {"bos_token": BOS, "eos_token": EOS}
                ),
            )
            gateway = await stack.enter_async_context(
                serving(
                    dispatcher=AgentDispatcher(),
                    model=model,
                    api_keys=frozenset({KEY}),
                )
            )
            said[name] = endpoints(gateway)
        print(json.dumps(said), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
