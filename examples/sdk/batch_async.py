"""Many prompts, a few at a time."""

from __future__ import annotations

import asyncio
import sys

from baton.client.async_client import AsyncBatonClient
from baton.client.results import GenerationResult

PROMPTS = [f"def {verb}_{noun}(" for verb in ("read", "write", "find") for noun in ("file", "line")]
MAX_AT_ONCE = 4


async def main(target: str = "localhost:8001") -> None:
    turns = asyncio.Semaphore(MAX_AT_ONCE)
    async with AsyncBatonClient(target) as client:

        async def complete(prompt: str) -> GenerationResult:
            async with turns:
                return await client.generate(prompt, max_tokens=24, temperature=0, stop="\n")

        results = await asyncio.gather(*map(complete, PROMPTS))
    for prompt, result in zip(PROMPTS, results, strict=True):
        print(f"{prompt}{result.text}   [{result.receipt.placement}]")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
