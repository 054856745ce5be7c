"""What a face has understood of a request, not yet checked."""

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
    """As it was given; None if tokens were."""
    cache_points: tuple[CachePoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    request_id: str
    """The public one: each choice is sent to replicas under its own."""
    prompts: tuple[Prompt, ...]
    options: SamplingOptions
    grammar: Grammar | None = None
    has_echo: bool = False
    """Each choice begins with its prompt."""
    is_streamed: bool = False
    default_max_tokens: int | None = None
    """None: what is left of the context."""
    field_by_option: Mapping[str, str] = field(default_factory=dict)
    """The caller's names for options, for error messages."""
    shown_special: Set[int] = frozenset()
    """Special tokens that show as text, for what reads the output to find."""
    includes_stop: bool = False
    """The text ends with the stop string, or the stop token's text, that ended it."""
    cache_salt: str = ""
    session: str = ""
    """What the caller calls the conversation; empty: nothing."""
    returns_progress: bool = False
    """Whether a stream tells the progress of the first prompt until its first token."""
    caller: Caller
    time_left_s: float | None = None
