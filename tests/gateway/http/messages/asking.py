"""What the tests of /v1/messages ask with."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx2
from tests.gateway.chat_models import WEATHER
from tests.gateway.scripted import MODEL, Serving

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]
SCHEMA = WEATHER["function"]["parameters"]
TOOL = {"name": "get_weather", "description": "Tell the weather.", "input_schema": SCHEMA}
BODY: dict[str, Any] = {"model": MODEL, "max_tokens": 500, "messages": HELLO}
EPHEMERAL = {"type": "ephemeral"}


def anthropic_of(gateway: Serving, **options: Any) -> Any:
    """Untyped: tests send what its types do not know."""
    plain = httpx2.AsyncClient(verify=False)  # certificates take it a while
    return anthropic.AsyncAnthropic(
        base_url=gateway.url, http_client=plain, max_retries=0, **(options or {"api_key": "none"})
    )
