"""The prompts of a protobuf request, as values for `read_prompts`."""

from __future__ import annotations

from collections.abc import Sequence

from baton.core.errors import InvalidRequest
from baton.proto import inference_pb2 as pb


def prompt_values(prompts: Sequence[pb.Prompt], field: str) -> list[str | list[int]]:
    """Raises InvalidRequest."""
    return [_value(prompt, f"{field}[{index}]") for index, prompt in enumerate(prompts)]


def _value(prompt: pb.Prompt, path: str) -> str | list[int]:
    match prompt.WhichOneof("prompt"):
        case "text":
            return prompt.text
        case "tokens":
            return list(prompt.tokens.ids)
    raise InvalidRequest(f"{path} has neither text nor tokens", field=path)
