"""Known fields that Baton cannot honour: refused or reported, unless their value asks for
nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
from msgspec import Meta

from baton.core.errors import InvalidRequest

IGNORED = Meta(description="Accepted, and not acted upon.")
LABEL = Meta(description="Of the caller's own books: accepted, and not acted upon.")
REFUSED = Meta(description="Refused unless it asks for nothing.")
Ignored = Annotated[Any, IGNORED]
"""A field that has an effect on other servers."""
Label = Annotated[Any, LABEL]
"""A field that describes the caller and has no effect."""
Refused = Annotated[Any, REFUSED]
Returned = Annotated[Any, Meta(description="Of an earlier answer; nothing is done with it.")]

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (None, True),
    "add_special_tokens": (None, True),
    "annotations": (None, []),
    "audio": (None,),
    "beam_width": (None, 1),
    "best_of": (None, 1),
    "chat_template": (None,),
    "do_sample": (None, True),
    "dry_multiplier": (None, 0, 0.0),
    "dynatemp_range": (None, 0, 0.0),
    "embed_normalize": (None, True),
    "enable_reasoning": (None,),
    "function_call": (None, "auto", "none"),
    "include_reasoning": (None, True),
    "inference_geo": (None, "global"),
    "length_penalty": (None, 1, 1.0),
    "logprobs": (None, False),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "mirostat": (None, 0),
    "modalities": (None, ["text"]),
    "moderation": (None,),
    "n": (None, 1),
    "n_probs": (None, 0),
    "normalize": (None, True),
    "normalized": (None, True),
    "num_beams": (None, 1),
    "parallel_tool_calls": (None, True),
    "prompt_cache_retention": (None, "in_memory", "in-memory"),
    "prompt_logprobs": (None,),
    "reasoning_format": (None, "auto", "deepseek"),
    "refusal": (None,),
    "repeat_penalty": (None, 1, 1.0),
    "response_format": (None, {}, {"type": "text"}),
    "separate_reasoning": (None, True),
    "service_tier": (None, "auto", "default", "standard_only"),
    "smoothing_factor": (None, 0, 0.0),
    "speed": (None, "standard"),
    "suffix": (None, ""),
    "tfs_z": (None, 1, 1.0),
    "think": (None,),
    "tool_choice": (None, "auto", "none"),
    "top_a": (None, 0, 0.0),
    "top_logprobs": (None, 0),
    "truncate": (None, False, "", "NONE"),
    "truncation": (None, False, "disabled"),
    "use_activation": (None, True),
    "web_search_options": (None,),
    "xtc_probability": (None, 0, 0.0),
}
"""Values that ask for nothing; for other fields, empty values and false."""
NOTHING: tuple[Any, ...] = (None, "", [], {})


MEDIA = (
    *("image", "image_url", "input_image"),
    *("audio", "audio_url", "input_audio", "video_url"),
    *("document", "file", "input_file"),
)
"""Parts of contents, those of tool results included, as OpenAI, Anthropic and vLLM name them."""


def unsupported_part(kind: object, path: str, known: str = "text") -> InvalidRequest:
    """The error of a part that is none of `known`."""
    remedy = f"send {known}"
    if kind in MEDIA:
        remedy = "models here read text; leave it out, or put into words what it shows"
    return InvalidRequest(f"{path}.type {kind!r} is not supported: {remedy}", field=f"{path}.type")


def has_no_effect(name: str, value: object) -> bool:
    if (neutral := NEUTRAL.get(name)) is None:
        return value is False or value in NOTHING
    return any(value == other and type(value) is type(other) for other in neutral)


def refuse_unsupported(
    body: msgspec.Struct,
    path: str = "",
    remedy_for: Callable[[str], str | None] = lambda name: None,
) -> None:
    """Raises InvalidRequest for the first field that asks for what Baton cannot do."""
    for name in refused_names(type(body)):
        if not has_no_effect(name, getattr(body, name)):
            remedy = remedy_for(name)
            reason = "is not supported" if remedy else "is not supported yet"
            raise InvalidRequest(
                f"{path}{name} {reason}; {remedy or 'leave it out'}", field=path + name
            )


def ignored_fields(body: msgspec.Struct, path: str = "") -> Iterator[str]:
    """Paths of fields that have no effect here; list items share one path: `tools[].x`."""
    for name in marked_fields(type(body), IGNORED):
        if not has_no_effect(name, getattr(body, name)):
            yield path + name
    for name in _holders(type(body)):
        value = getattr(body, name)
        if isinstance(value, list):
            yield from dict.fromkeys(
                found
                for item in value
                if isinstance(item, msgspec.Struct)
                for found in ignored_fields(item, f"{path}{name}[].")
            )
        elif isinstance(value, msgspec.Struct):
            yield from ignored_fields(value, f"{path}{name}.")


def labels(body: msgspec.Struct) -> Iterator[str]:
    """The fields that only describe the caller."""
    for name in marked_fields(type(body), LABEL):
        if not has_no_effect(name, getattr(body, name)):
            yield name


def refused_names(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return marked_fields(kind, REFUSED)


@cache
def marked_fields(kind: type[msgspec.Struct], mark: Meta) -> tuple[str, ...]:
    """Fields whose type has this mark."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        name
        for name in kind.__struct_fields__
        if any(one is mark for one in getattr(hints[name], "__metadata__", ()))
    )


@cache
def _holders(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Fields with structs in which something may be ignored."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        name
        for name in kind.__struct_fields__
        if any(_ignores(inner, (kind,)) for inner in _structs(hints[name]))
    )


def _ignores(kind: type[msgspec.Struct], above: tuple[type, ...]) -> bool:
    if kind in above:
        return False
    hints = get_type_hints(kind, include_extras=True).values()
    return bool(marked_fields(kind, IGNORED)) or any(
        _ignores(inner, (*above, kind)) for hint in hints for inner in _structs(hint)
    )


def _structs(hint: object) -> Iterator[type[msgspec.Struct]]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for inner in get_args(hint):
        yield from _structs(inner)
