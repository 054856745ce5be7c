"""The files of a model whose weights are no weights, and what came of fetching them."""

from __future__ import annotations

from pathlib import Path

WEIGHTS = bytes(range(256)) * 12_000  # three pieces and some
FILES = {"config.json": b"{}", "tokenizer.json": b'{"a": 1}', "model.safetensors": WEIGHTS}
TEMPLATES = {"additional_chat_templates/tool_use.jinja": b"{{ tools }}"}


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
