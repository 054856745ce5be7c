"""Batches that the official `openai` package asks a gateway for, which keeps them in a folder."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import openai
from openai.types import Batch
from tests.gateway.scripted import MODEL, Script, ScriptedDispatcher, Serving, serving, tokens_of

from baton.gateway.access.batch_config import BatchConfig
from baton.gateway.requests.generations.generation import Generation
from baton.gateway.storage.config import StorageConfig

CHAT: Final = "/v1/chat/completions"


@asynccontextmanager
async def keeping(folder: Path, **settings: Any) -> AsyncIterator[Serving]:
    storage = StorageConfig(folder=str(folder))
    settings = {"batches": BatchConfig(takeover_s=0.2), **settings}
    async with serving(storage=storage, **settings) as gateway:
        yield gateway


def openai_of(gateway: Serving, key: str = "none") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)


def chat_line(name: str, **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": name}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 3, **body}
    return {"custom_id": name, "method": "POST", "url": CHAT, "body": body}


async def begun(client: openai.AsyncOpenAI, lines: Sequence[Any], *, endpoint: Any = CHAT) -> Batch:
    data = "\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines)
    file = await client.files.create(file=("in.jsonl", data.encode()), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", metadata={"for": "me"}
    )


async def ended(client: openai.AsyncOpenAI, batch: Batch) -> Batch:
    async with asyncio.timeout(60):
        while batch.status not in ("failed", "completed", "expired", "cancelled"):
            await asyncio.sleep(0.02)
            batch = await client.batches.retrieve(batch.id)
    return batch


async def lines_of(client: openai.AsyncOpenAI, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    lines = [json.loads(one) for one in (await client.files.content(file_id)).text.splitlines()]
    by_name = {line["custom_id"]: line for line in lines}
    assert len(by_name) == len(lines)
    return by_name


class DyingDispatcher(ScriptedDispatcher):
    """Answers some requests, and no more."""

    def __init__(self, num_before: int) -> None:
        super().__init__(Script(tokens=tokens_of("the fox")))
        self._num_before = num_before
        self.is_stuck = asyncio.Event()

    async def start(self, generation: Generation) -> Any:
        if len(self.generations) == self._num_before:
            self.generations.append(generation)
            self.is_stuck.set()
            await asyncio.Event().wait()
        return await super().start(generation)
