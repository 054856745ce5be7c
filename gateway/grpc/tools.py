"""The tools of a chat, from protobuf."""

from __future__ import annotations

from typing import Any

import msgspec

from baton.core.errors import InvalidRequest
from baton.gateway.chat.functions import Function
from baton.gateway.chat.tool_definitions import ToolUse, use_of
from baton.proto import inference_pb2 as pb

WORDS = {
    pb.ToolMode.TOOL_MODE_UNSPECIFIED: None,
    pb.ToolMode.TOOL_MODE_NONE: "none",
    pb.ToolMode.TOOL_MODE_AUTO: "auto",
    pb.ToolMode.TOOL_MODE_REQUIRED: "required",
}


def tool_use_of(request: pb.ChatRequest) -> ToolUse:
    """Raises InvalidRequest."""
    functions = [_function(tool, f"tools[{i}]") for i, tool in enumerate(request.tools)]
    is_parallel = not request.HasField("parallel_tool_calls") or request.parallel_tool_calls
    return use_of(functions, _choice(request), is_parallel=is_parallel, schema_field="parameters")


def _choice(request: pb.ChatRequest) -> str | dict[str, Any] | None:
    """The choice as OpenAI's `tool_choice`."""
    if request.WhichOneof("tool_choice") == "function":
        return {"type": "function", "function": {"name": request.function}}
    return WORDS.get(request.tool_mode)


def _function(tool: pb.Tool, path: str) -> Function:
    parameters: dict[str, Any] | None = None
    if tool.parameters:
        try:
            parameters = msgspec.json.decode(tool.parameters, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            path = f"{path}.parameters"
            message = f"{path} is not a JSON schema: {error}"
            raise InvalidRequest(message, field=path) from error
    return Function(
        name=tool.name,
        description=tool.description or None,
        parameters=parameters,
        strict=tool.strict,
    )
