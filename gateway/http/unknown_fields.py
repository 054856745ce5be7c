"""Fields of a body that Baton does not know: left out, unless that changes what is meant.

    a name that others act on, and Baton does not     refused, with what to use instead
    nearly the name of a field                        refused: "did you mean ...?"
    anything else                                     left out; the header `x-baton-ignored` says so

Clients send fields of many servers along; few of them wait for an effect.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from baton.core.errors import InvalidRequest
from baton.gateway.access.config import GatewayConfig
from baton.gateway.http.request_body import (
    UnknownField,
    decode_body,
    decode_json,
    read_body,
)

B = TypeVar("B", bound=msgspec.Struct)

MAX_UNKNOWN = 32
"""Places of such fields; more are refused, for each takes another look at the body."""
MAX_READ_BYTES = 32 << 20
"""In all these looks together; two are always had."""
MAX_SHOWN = 64
"""Characters of a name; longer ones are like no field."""
LIKENESS = 0.85
"""From which on one name is a slip of another: by `difflib`, 1 is the same."""
MIN_LETTERS = 3
STEP = re.compile(r"\[[^\]]*\]|[^.\[\]]+")
USE_INSTEAD = {
    "best_of_n": "use n and best_of",
    "beam_width": "there is no beam search here",
    "documents": "put them into messages",
    "dry_multiplier": "use repetition_penalty or frequency_penalty",
    "do_sample": "use temperature: 0",
    "ebnf": "use structured_outputs.grammar",
    "early_stopping": "there is no beam search here",
    "grammar": "use structured_outputs.grammar",
    "input": "use prompt, messages, or /v1/responses",
    "json_schema": "use response_format or structured_outputs.json",
    "length_penalty": "there is no beam search here",
    "logits_processors": "use logit_bias, allowed_token_ids or structured_outputs",
    "lora_request": "adapters are not served here",
    "max_chunks_per_doc": "use max_tokens_per_doc",
    "max_new_tokens": "use max_tokens",
    "max_length": "use max_tokens",
    "max_tokens_to_sample": "use max_tokens",
    "messages": "use /v1/chat/completions",
    "min_new_tokens": "use min_tokens",
    "mirostat": "use temperature, top_p or min_p",
    "mm_processor_kwargs": "models here read text",
    "n_predict": "use max_tokens",
    "num_beams": "there is no beam search here",
    "prompt": "use messages, or /v1/completions",
    "rank_fields": "give documents as texts",
    "regex": "use structured_outputs.regex",
    "repeat_penalty": "use repetition_penalty",
    "stop_sequences": "use stop",
    "system": "use a message of role system",
    "tfs_z": "use top_p or min_p",
    "top_a": "use min_p",
    "use_beam_search": "there is no beam search here",
    "xtc_probability": "use min_p or typical_p",
}
"""Fields of other servers that would change the output."""
USE_INSTEAD_IN_MESSAGES = {
    "images": "models here read text",
    "partial": "use continue_final_message",
    "prefix": "use continue_final_message",
}
MEANT_WHOLE = ("response_format", "structured_outputs", "text", "output_config", "output_format")
"""In these every word is meant."""
WITHOUT_EFFECT = (("do_sample", True), ("early_stopping", False), ("use_beam_search", False))
"""Values of these fields that ask for what is done anyway."""


async def read_known(request: Request, config: GatewayConfig, kind: type[B]) -> B:
    """Raises InvalidRequest."""
    return known(request, config, await read_body(request, config), kind)


def known(request: Request, config: GatewayConfig, data: bytes, kind: type[B]) -> B:
    """What is left out is noted for the answer's header. Raises InvalidRequest."""
    if config.unknown_fields == "refuse":
        return decode_body(data, kind)
    body, ignored = decode_known(data, kind)
    request.state.ignored_fields.extend(ignored)
    return body


def note_without_effect(request: Request, config: GatewayConfig, fields: Sequence[str]) -> None:
    """Fields that are known and do nothing here, for the answer's header. Raises InvalidRequest
    where an operator wants none such."""
    if fields and config.unknown_fields == "refuse":
        raise InvalidRequest(
            f"{fields[0]} has no effect on this model, and gateway.unknown_fields is refuse; leave "
            "it out",
            field=fields[0],
        )
    request.state.ignored_fields.extend(fields)


def decode_known(data: bytes, kind: type[B]) -> tuple[B, tuple[str, ...]]:
    """The body without the fields that it does not have, and their names; those that are null are
    not worth a word. Raises InvalidRequest."""
    tree: Any = None
    ignored: list[str] = []
    left = max(MAX_READ_BYTES, 2 * len(data))
    for _ in range(MAX_UNKNOWN):
        left -= len(data)
        if left < 0:
            break
        try:
            return decode_body(data, kind), tuple(ignored)
        except UnknownField as error:
            if tree is None:
                tree = decode_json(data, Any)
            if not error.path:
                ignored += _drop_all(tree, kind)
            else:
                _refuse_meant(error, kind)
                if _drop(tree, STEP.findall(error.path), error.name):
                    ignored.append(_shown(error))
            data = msgspec.json.encode(tree)
    raise InvalidRequest("the body has too many fields that Baton does not know; leave them out")


def _drop_all(body: dict[str, Any], kind: type[msgspec.Struct]) -> Iterator[str]:
    """At once, of what a body has beside the fields of `kind`: it may be large."""
    for name in [name for name in body if name not in kind.__struct_fields__]:
        value = body.pop(name)
        if value is None or (name, value) in WITHOUT_EFFECT:
            continue
        error = UnknownField("", name)
        _refuse_meant(error, kind)
        yield _shown(error)


def _refuse_meant(error: UnknownField, kind: type[msgspec.Struct]) -> None:
    use_instead = USE_INSTEAD_IN_MESSAGES if error.path.startswith("messages") else USE_INSTEAD
    if remedy := use_instead.get(error.name):
        raise InvalidRequest(f"{error.field} is not supported; {remedy}", field=error.field)
    names = _names(kind)
    if error.name in names or len(error.name) > MAX_SHOWN:
        near = []  # of something else in the body, or like no name: no slip
    else:
        near = get_close_matches(error.name, names, n=1, cutoff=LIKENESS)
        near += [name for name in names if is_one_slip(name, error.name)]
    if near:
        raise InvalidRequest(
            f"{error.field} is not a field Baton knows; did you mean {near[0]}?", field=error.field
        )
    if error.path.startswith(MEANT_WHOLE):
        raise error


def is_one_slip(name: str, other: str) -> bool:
    """One letter is another, and there are three at least: short names are never much alike."""
    num_other = sum(one != another for one, another in zip(name, other, strict=False))
    return len(name) == len(other) >= MIN_LETTERS and num_other == 1


def _drop(node: Any, steps: list[str], name: str) -> bool:
    """Of all items of a list alike: what one message has, others have. Whether any had a value."""
    if isinstance(node, list):
        return any([_drop(item, steps, name) for item in node])
    if not isinstance(node, dict):
        return False
    while steps and steps[0].startswith("["):
        steps = steps[1:]
    if steps:
        return _drop(node.get(steps[0]), steps[1:], name)
    return node.pop(name, None) is not None


def _shown(error: UnknownField) -> str:
    """Where it is, for a header: `messages[].name`."""
    path = f"{error.path[:MAX_SHOWN]}.{error.name[:MAX_SHOWN]}".lstrip(".")
    path = re.sub(r"\[[^\]]*\]", "[]", path)
    return re.sub(r"[^\w.\[\]-]", "?", path, flags=re.ASCII)[:MAX_SHOWN]


@cache
def _names(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Of the fields of a body, and of what lies in it."""
    _, components = msgspec.json.schema_components([kind])
    found = {name for one in components.values() for name in one.get("properties", ())}
    return tuple(sorted(found))
