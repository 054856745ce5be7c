"""Fields that are known and cannot be acted upon: refused, unless they ask for nothing."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from baton.core.errors import InvalidRequest

Ignored = Annotated[Any, Meta(description="Accepted, and not acted upon.")]


Refused = Annotated[Any, Meta(description="Refused unless it asks for nothing.")]

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "suffix": (None, ""),
    "audio": (None,),
    "modalities": (None, ["text"]),
    "moderation": (None,),
    "web_search_options": (None,),
    "annotations": (None, []),
    "refusal": (None,),
}


REMEDIES = {
    "chat_template": "the model's own is used; chat_template_kwargs sets its switches",
}


MEDIA = (
    *("image", "image_url", "input_image"),
    *("audio", "audio_url", "input_audio", "video_url"),
    *("document", "file", "input_file"),
)
"""Parts of contents, those of tool results included, as OpenAI, Anthropic and vLLM name them."""


def unsupported_part(kind: object, path: str, known: str = "text") -> InvalidRequest:
    """Of a part that is none of `known`."""
    remedy = f"send {known}"
    if kind in MEDIA:
        remedy = "models here read text; leave it out, or put into words what it shows"
    return InvalidRequest(f"{path}.type {kind!r} is not supported: {remedy}", field=f"{path}.type")


def refuse_unsupported(body: msgspec.Struct, path: str = "") -> None:
    """Raises InvalidRequest for the first field that asks for what Baton cannot do yet."""
    for name in body.__struct_fields__:
        neutral = NEUTRAL.get(name)
        if neutral is None:
            continue
        value = getattr(body, name)
        if not any(value == other and type(value) is type(other) for other in neutral):
            remedy = REMEDIES.get(name)
            reason = "is not supported" if remedy else "is not supported yet"
            raise InvalidRequest(
                f"{path}{name} {reason}; {remedy or 'leave it out'}", field=path + name
            )
