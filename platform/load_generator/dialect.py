"""How to call one endpoint: path, model, and accepted optional fields."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec


class Api(StrEnum):
    COMPLETIONS = "completions"
    CHAT = "chat"

    @property
    def path(self) -> str:
        return "/v1/completions" if self is Api.COMPLETIONS else "/v1/chat/completions"


OPTIONAL_FIELDS = ("min_tokens", "ignore_eos", "stream_options", "temperature")
"""Optional fields, which are dropped in this order if the server refuses them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    api: Api
    model: str
    optional_fields: tuple[str, ...] = OPTIONAL_FIELDS
    max_tokens_field: str = "max_tokens"

    def body(self, prompt: list[int] | str, output_length: int) -> bytes:
        optional = {
            "min_tokens": output_length,
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
        }
        return msgspec.json.encode(
            {
                "model": self.model,
                **self._asked(prompt),
                self.max_tokens_field: output_length,
                "stream": True,
                **{name: optional[name] for name in self.optional_fields},
            }
        )

    def _asked(self, prompt: list[int] | str) -> dict[str, Any]:
        if self.api is Api.COMPLETIONS:
            return {"prompt": prompt}
        return {"messages": [{"role": "user", "content": prompt}]}
