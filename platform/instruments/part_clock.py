"""Times each part of a model in eager passes, with hooks around modules.

    attention       qkv | RoPE, KV write, scores | out      time outside of its products is its own
    feed-forward    gate and up, activation | down

`baton.platform.instruments.tape_clock` times passes from a tape. On a GPU kernels run
asynchronously, so `baton profile` uses torch's profiler there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from torch import nn

from baton.engine.layers.attention import Attention
from baton.engine.layers.compressed_attention import CompressedAttention
from baton.engine.layers.feed_forward import FeedForward, GatedFeedForward, LimitedFeedForward
from baton.engine.layers.linear import Linear
from baton.engine.layers.mla import LatentAttention
from baton.engine.layers.moe import Experts, MoeFeedForward
from baton.engine.layers.norm import LayerNorm, RmsNorm
from baton.engine.layers.rope import RotaryAngles
from baton.engine.models.skeleton.decoder import Decoder
from baton.platform.models.model_shape import Part, part_of


@dataclass(frozen=True, slots=True)
class Span:
    """One part at work once."""

    name: str
    started_at: float
    """Start of the span, by time.perf_counter."""
    seconds: float


class ModuleClock:
    """Seconds by part, of eager passes while it is entered."""

    def __init__(self, model: Decoder) -> None:
        self.seconds: dict[Part, float] = {}
        self.spans: list[Span] = []
        """Spans in order; those of attention and feed-forward contain those of their products."""
        self._model = model
        self._hooks = ExitStack()
        self._started: list[float] = []
        self._inner: list[float] = []
        """Seconds of timed modules within those that have been entered."""

    def reset(self) -> None:
        self.seconds = {}
        self.spans = []

    def __enter__(self) -> Self:
        for part, module in _timed_modules(self._model):
            self._watch(part, module)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._hooks.close()

    def _watch(self, part: Part, module: nn.Module) -> None:
        def before(module: nn.Module, inputs: Any) -> None:
            self._inner.append(0.0)
            self._started.append(time.perf_counter())

        def after(module: nn.Module, inputs: Any, output: Any) -> None:
            started = self._started.pop()
            took = time.perf_counter() - started
            self.spans.append(Span(str(part), started, took))
            own = took - self._inner.pop()
            if self._inner:
                self._inner[-1] += took
            self.seconds[part] = self.seconds.get(part, 0.0) + own

        self._hooks.callback(module.register_forward_pre_hook(before).remove)
        self._hooks.callback(module.register_forward_hook(after).remove)


def _timed_modules(model: Decoder) -> Iterator[tuple[Part, nn.Module]]:
    for name, module in model.named_modules():
        match module:
            case Linear() if name.startswith("blocks"):
                yield part_of(name), module
            case Experts():
                yield Part.EXPERTS, module
            case MoeFeedForward():
                yield Part.ROUTER, module  # the choice, which is no product
            case Attention() | LatentAttention() | CompressedAttention():
                yield Part.ATTENTION, module
            case FeedForward() | GatedFeedForward() | LimitedFeedForward():
                yield Part.GATE_UP, module  # the first product and what follows it
            case RmsNorm() | LayerNorm():
                yield _norm_part(name), module
            case RotaryAngles():
                yield Part.ROPE, module
    yield Part.EMBEDDING, model.embed


def _norm_part(name: str) -> Part:
    return Part.ROPE if ".attn." in name else Part.NORMS
