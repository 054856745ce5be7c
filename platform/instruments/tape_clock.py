"""Times each operator of a tape, by part of the model.

The tape adds the time of each call to an array, so that passes are timed as in service: without
Python, by the same threads. Products are identified by their weights, other operators by name;
preparation of a product (quantising its input) counts as the product.
"""

from __future__ import annotations

import ctypes
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from baton.engine.batch.batch import Batch
from baton.engine.layers.linear import Linear
from baton.engine.layers.moe import Experts
from baton.engine.models.skeleton.decoder import Decoder
from baton.engine.passes.taped_model import TapedModel, pass_of
from baton.kernels.cpu.operators import Call, Pass
from baton.kernels.cpu.tape import Tape
from baton.platform.instruments.part_clock import Span
from baton.platform.models.model_shape import Part, part_of

OPERATOR_PARTS = {
    "attention": Part.ATTENTION,
    "head_linear": Part.ATTENTION,
    "choose_tokens": Part.ATTENTION,
    "latent_write": Part.ROPE,
    "index_write": Part.ROPE,
    "choose_entries": Part.ATTENTION,
    "write_rows": Part.ROPE,
    "close_windows": Part.ROPE,
    "rope": Part.ROPE,
    "rotary": Part.ROPE,
    "embedding": Part.EMBEDDING,
    "norm": Part.NORMS,
    "streams": Part.NORMS,
    "take_rows": Part.NORMS,
    "route": Part.ROUTER,
    "silu": Part.GATE_UP,
    "gelu": Part.GATE_UP,
    "relu": Part.GATE_UP,
    "clamped_gate": Part.GATE_UP,
}
"""Model part by a substring of the operator's name. Products are told apart by their weights."""


@dataclass(frozen=True, slots=True)
class _Played:
    """One pass of a tape."""

    at: float
    calls: Sequence[Call]
    parts: Sequence[Part]
    seconds: ctypes.Array[ctypes.c_double]


class TapeClock:
    """Plays the passes of a taped model and records their times, which are only evaluated on
    request, outside the measured time.
    """

    def __init__(self, model: Decoder, taped: TapedModel) -> None:
        self.taped = taped
        self._parts = parts_of(model, taped.forward_tape.calls)
        self._head_parts = parts_of(model, taped.logits_tape.calls)
        self._played: list[_Played] = []

    @property
    def seconds(self) -> dict[Part, float]:
        found: dict[Part, float] = {}
        for played in self._played:
            for part, took in zip(played.parts, played.seconds, strict=True):
                found[part] = found.get(part, 0.0) + took
        return found

    @property
    def spans(self) -> list[Span]:
        """Spans of the operators, laid end to end, since their start times are not measured."""
        spans: list[Span] = []
        for played in self._played:
            at = played.at
            for call, part, took in zip(played.calls, played.parts, played.seconds, strict=True):
                spans.append(Span(f"{part}: {call.name}", at, took))
                at += took
        return spans

    def reset(self) -> None:
        self._played = []

    def forward(self, batch: Batch) -> Tensor:
        """`TapedModel.forward`, with its parts timed."""
        of = pass_of(batch)
        self._play(self.taped.forward_tape, of, self._parts)
        return self.taped.forward_tape.result[: of.num_outputs]

    def logits(self, hidden: Tensor) -> Tensor:
        tape = self.taped.logits_tape
        tape.give(hidden)
        self._play(tape, Pass(num_outputs=len(hidden)), self._head_parts)
        return tape.result[: len(hidden)]

    def _play(self, tape: Tape, of: Pass, parts: Sequence[Part]) -> None:
        seconds = (ctypes.c_double * len(tape.calls))()
        self._played.append(_Played(time.perf_counter(), tape.calls, parts, seconds))
        tape.play(of, seconds=seconds)


def parts_of(model: Decoder, calls: Sequence[Call]) -> list[Part]:
    """The part of each call. Preparation of a product (quantising its input) counts as the
    product."""
    part_by_address = dict(_weights(model))
    known = [_part_of_call(call, part_by_address) for call in calls]
    parts: list[Part] = []
    following = Part.HEAD
    for part in reversed(known):
        following = part or following
        parts.append(following)
    return parts[::-1]


def _part_of_call(call: Call, part_by_address: Mapping[int, Part]) -> Part | None:
    for fragment, part in OPERATOR_PARTS.items():
        if fragment in call.name:
            return part
    if call.name.startswith("add_"):
        return Part.NORMS
    addresses = [
        tensor.data_ptr() for name, tensor in call.tensors().items() if name in call.inputs
    ]
    return next((part_by_address[a] for a in addresses if a in part_by_address), None)


def _weights(model: Decoder) -> Iterator[tuple[int, Part]]:
    yield from ((tensor.data_ptr(), Part.HEAD) for tensor in _tensors(model.embed.weight))
    for name, module in model.named_modules():
        if isinstance(module, Linear):
            for tensor in _tensors(module.weight):
                yield tensor.data_ptr(), part_of(name)
        if isinstance(module, Experts):
            for weight in (module.gate_up, module.down):
                yield from ((tensor.data_ptr(), Part.EXPERTS) for tensor in _tensors(weight))


def _tensors(weight: object) -> Iterator[Tensor]:
    """The tensors of a weight, plain or in a packed form."""
    if isinstance(weight, Tensor):
        yield weight
    elif dataclasses.is_dataclass(weight):
        for one in dataclasses.fields(weight):
            yield from _tensors(getattr(weight, one.name))
