"""Every example of the README and of examples/sdk runs, against a gateway with scripted answers."""

from __future__ import annotations

import asyncio
import re
import runpy
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.scripted import (
    Script,
    ScriptedDispatcher,
    Serving,
    eos_token,
    make_model,
    serving,
    tokens_of,
)

ROOT = Path(__file__).parents[2]
README = (ROOT / "client" / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
EXAMPLES = sorted((ROOT / "examples" / "sdk").glob("*.py"))
TEMPLATE = (
    "{% for tool in tools or [] %}<tool_call>{{ tool | tojson }}{% endfor %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"
)


@pytest.fixture
async def gateway() -> AsyncIterator[Serving]:
    script = Script(tokens=tokens_of("the lazy dog"), ends_with_eos=True)
    model = replace(make_model(template=TEMPLATE), eos_token_ids=(eos_token(),))
    dispatcher = ScriptedDispatcher(script, max_model_len=1000)
    async with serving(dispatcher=dispatcher, model=model) as serving_gateway:
        yield serving_gateway


async def test_the_readme_runs_from_its_first_line_to_its_last(gateway: Serving) -> None:
    def run() -> dict[str, Any]:
        names: dict[str, Any] = {"__name__": "__main__"}
        for block in BLOCKS:
            exec(block.replace("localhost:8001", gateway.grpc_target), names)
        return names

    names = await asyncio.to_thread(run)

    assert len(BLOCKS) == README.count("```python")
    assert names["answer"].text == "the lazy dog"
    assert len(names["vectors"]) == 2


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
async def test_an_example_runs(
    gateway: Serving, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = runpy.run_path(str(path))
    call = names["main"](gateway.grpc_target) if path.stem == "batch_async" else None

    if call is None:
        await asyncio.to_thread(names["main"], gateway.grpc_target)
    else:
        await call

    assert capsys.readouterr().out.strip()
    assert gateway.dispatcher.generations
