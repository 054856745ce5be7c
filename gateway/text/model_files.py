"""The files of a Hugging Face model folder that the gateway reads; not the weights.

config.json                vocabulary and context size
generation_config.json     defaults of sampling                                   optional
tokenizer.json             the tokenizer itself
tokenizer_config.json      special tokens, chat templates                         optional
chat_template.jinja        chat template `default`                                optional
additional_chat_templates/ more of them, NAME.jinja                               optional
chat_template.json         a processor's chat template                            optional

Chat templates in their own files take precedence over tokenizer_config's; a processor's come last.

`pooling_files.py` reads what they say about labels, pairs and embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from baton.core.errors import CheckpointError
from baton.core.sampling import SamplingParams
from baton.gateway.text.byte_tokenizer import byte_tokenizer_json
from baton.gateway.text.pooling_files import PoolingFiles

BATON_DEFAULTS = SamplingParams()
DEFAULT = "default"
"""The name of the chat template for conversations without tools, or for all."""
ADDITIONAL_TEMPLATES = "additional_chat_templates"
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """The model authors' recommended values for options that a request leaves out."""

    temperature: float = BATON_DEFAULTS.temperature
    top_k: int = BATON_DEFAULTS.top_k
    top_p: float = BATON_DEFAULTS.top_p
    min_p: float = BATON_DEFAULTS.min_p
    typical_p: float = BATON_DEFAULTS.typical_p
    repetition_penalty: float = BATON_DEFAULTS.repetition_penalty
    max_new_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    tokenizer_json: str
    special_tokens: Mapping[str, str]
    """Special tokens by role: `bos_token`, `eos_token`, ... as chat templates name them."""
    chat_templates: Mapping[str, str]
    """Chat templates by name (chat_templates.py)."""
    sampling: SamplingDefaults
    vocab_size: int
    """Rows of the embedding; token ids of requests must be less."""
    eos_token_ids: tuple[int, ...]
    context_len: int
    """The model's context length in tokens."""
    pooling: PoolingFiles

    @classmethod
    def read(cls, folder: Path, *, needs_tokenizer: bool = True) -> ModelFiles:
        """Raises CheckpointError, naming the file, if a required one is missing or broken. Without
        a tokenizer, if none is required, tokens are bytes.
        """
        config = _read_json(folder / "config.json")
        text_config = {**config, **_mapping(config.get("text_config"))}
        tokenizer_config = _read_json(folder / "tokenizer_config.json", default={})
        return cls(
            tokenizer_json=_tokenizer_json(folder / "tokenizer.json", needs_tokenizer),
            special_tokens=_special_tokens(tokenizer_config),
            chat_templates=_chat_templates(folder, tokenizer_config),
            sampling=_sampling_defaults(folder / "generation_config.json"),
            vocab_size=_positive_int(folder, text_config, ("vocab_size",)),
            eos_token_ids=_eos_token_ids(folder / "generation_config.json", text_config),
            context_len=_positive_int(folder, text_config, CONTEXT_KEYS),
            pooling=PoolingFiles.read(folder, config),
        )


def _tokenizer_json(path: Path, is_needed: bool) -> str:
    return _read_text(path) if is_needed or path.exists() else byte_tokenizer_json()


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error


def _read_json(path: Path, default: dict[str, Any] | None = None) -> dict[str, Any]:
    if default is not None and not path.exists():
        return default
    try:
        return msgspec.json.decode(_read_text(path), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{path} is not a JSON object: {error}") from error


def is_inline(chat_template: str) -> bool:
    """Whether the setting gateway.chat_template is the template itself, not a path."""
    return any(mark in chat_template for mark in ("{{", "{%", "{#", "\n"))


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _positive_int(folder: Path, config: Mapping[str, Any], keys: tuple[str, ...]) -> int:
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and value > 0:
            return value
    raise CheckpointError(f"{folder / 'config.json'} has no {' or '.join(keys)}")


def _eos_token_ids(generation_config: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """End tokens as the engine reads them: from generation_config, else config; one id or a
    list."""
    given = _read_json(generation_config, default={}).get("eos_token_id")
    found = config.get("eos_token_id") if given is None else given
    return tuple(found) if isinstance(found, list) else () if found is None else (found,)


def _special_tokens(tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by role; each a string, or a serialised AddedToken with its text under
    `content`."""
    tokens: dict[str, str] = {}
    for name, value in tokenizer_config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    return tokens


def _chat_templates(folder: Path, tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    default = folder / "chat_template.jinja"
    files = {DEFAULT: default} if default.exists() else {}
    files |= {path.stem: path for path in sorted(folder.glob(f"{ADDITIONAL_TEMPLATES}/*.jinja"))}
    if files:
        return {name: _read_text(path) for name, path in files.items()}
    if (given := tokenizer_config.get("chat_template")) is not None:
        return _named_templates(folder / "tokenizer_config.json", given)
    legacy = folder / "chat_template.json"
    given = _read_json(legacy, default={}).get("chat_template")
    return {} if given is None else _named_templates(legacy, given)


def _named_templates(path: Path, given: object) -> dict[str, str]:
    """Templates by name: a single string is the default, a list has names."""
    if isinstance(given, list):
        given = {entry.get("name"): entry.get("template") for entry in map(_mapping, given)}
    by_name = given if isinstance(given, dict) else {DEFAULT: given}
    try:
        return msgspec.convert(by_name, dict[str, str])
    except msgspec.ValidationError:
        raise CheckpointError(
            f"{path}: chat_template is neither a string nor a list of names and templates"
        ) from None


def _sampling_defaults(path: Path) -> SamplingDefaults:
    values = _read_json(path, default={})
    known = {
        name: values[name]
        for name in SamplingDefaults.__dataclass_fields__
        if values.get(name) is not None
    }
    try:
        return msgspec.convert(known, SamplingDefaults)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path}: {error}") from error
