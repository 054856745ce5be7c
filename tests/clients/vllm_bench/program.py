"""The requests of `vllm bench serve`, which is too large to install: with aiohttp, as it asks.

Bodies and the reading of chunks follow vllm/benchmarks/lib/endpoint_request_func.py (backends
`openai` and `openai-chat`) and what `vllm bench serve` adds: request ids, `ignore_eos`, sampling
parameters in the body.
"""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import steps

SAMPLED = {"temperature": 0.0, "top_p": 0.9, "top_k": 20, "min_p": 0.0}


async def pieces(path: str, body: dict[str, Any]) -> list[str]:
    """Of a stream whose last chunk counts its tokens, as the benchmark believes them."""
    common = {"model": steps.MODEL, "stream": True, "stream_options": {"include_usage": True}}
    headers = {"Authorization": f"Bearer {steps.KEY}", "x-request-id": "bench-1"}
    told: list[str] = []
    num_tokens = 0
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{steps.URL}{path}", json={**common, **body}, headers=headers) as response,
    ):
        if response.status != 200:
            raise RuntimeError(await response.text())
        async for line in response.content:
            chunk = line.decode().removeprefix("data: ").strip()
            if not chunk or chunk == "[DONE]":
                continue
            data = json.loads(chunk)
            if choices := data.get("choices"):
                text = choices[0]["delta"].get("content") if "chat" in path else choices[0]["text"]
                told += [text] if text else []
            elif usage := data.get("usage"):
                num_tokens = usage["completion_tokens"]
    assert num_tokens >= len(told), f"{num_tokens} tokens of {told}"
    return told


def completed(**added: Any) -> Any:
    body = {
        "prompt": steps.QUESTION,
        "repetition_penalty": 1.0,
        "max_tokens": 128,
        "logprobs": None,
        **added,
    }
    return pieces("/v1/completions", body)


async def answer() -> str:
    return "".join(await completed(**SAMPLED, ignore_eos=False))


def chat() -> Any:
    content = [{"type": "text", "text": steps.QUESTION}]
    body = {"messages": [{"role": "user", "content": content}], "max_completion_tokens": 128}
    return pieces("/v1/chat/completions", {**body, **SAMPLED})


steps.run(answer=answer, stream=completed, stream_chat=chat)
