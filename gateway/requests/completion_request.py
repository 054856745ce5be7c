"""A generation request as an API has read it, not yet checked."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from baton.core.messages import CachePoint
from baton.core.sampling import Grammar
from baton.gateway.access.api_keys import Caller
from baton.gateway.requests.options import SamplingOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    tokens: tuple[int, ...]
    field: str
    """The caller's name for it, for error messages."""
    text: str | None = None
    """The prompt as text; None if it was given as tokens."""
    cache_points: tuple[CachePoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    request_id: str
    """The public id; each choice is sent to replicas under an id of its own."""
    prompts: tuple[Prompt, ...]
    options: SamplingOptions
    grammar: Grammar | None = None
    has_echo: bool = False
    """Each choice begins with its prompt."""
    is_streamed: bool = False
    default_max_tokens: int | None = None
    """None: the rest of the context."""
    field_by_option: Mapping[str, str] = field(default_factory=dict)
    """The caller's names for options, for error messages."""
    shown_special: Set[int] = frozenset()
    """Special tokens shown as text, for the parsers of the output."""
    includes_stop: bool = False
    """Whether the text includes the stop string, or stop token, that ended it."""
    adapter: str = ""
    """The LoRA adapter that its model names, see `Gateway.check_model`; empty: none."""
    cache_salt: str = ""
    session: str = ""
    """The caller's key of the conversation; empty: none."""
    returns_progress: bool = False
    """Whether a stream reports the progress of the first prompt until its first token."""
    caller: Caller
    time_left_s: float | None = None
