"""How a request's sampling, and the grammar it follows, are written as protobuf.

Fields of `SamplingParams` and of the message `Sampling` have the same names, and travel by them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from baton.core.errors import InvalidRequest
from baton.core.sampling import Grammar, GrammarKind, SamplingParams
from baton.proto import replica_pb2 as pb

_GRAMMAR_TO_PROTO = {
    GrammarKind.JSON_SCHEMA: pb.GRAMMAR_KIND_JSON_SCHEMA,
    GrammarKind.REGEX: pb.GRAMMAR_KIND_REGEX,
    GrammarKind.LARK: pb.GRAMMAR_KIND_LARK,
}
_GRAMMAR_FROM_PROTO = {number: kind for kind, number in _GRAMMAR_TO_PROTO.items()}


def grammar_to_proto(grammar: Grammar) -> pb.Grammar:
    return pb.Grammar(kind=_GRAMMAR_TO_PROTO[grammar.kind], source=grammar.source)


def grammar_from_proto(message: pb.Grammar) -> Grammar:
    """Raises InvalidRequest for a kind that this process does not know: it cannot be left out."""
    kind = _GRAMMAR_FROM_PROTO.get(message.kind)
    if kind is None:
        raise InvalidRequest(f"grammar of unknown kind {message.kind}", field="grammar")
    return Grammar(kind, message.source)


def _biases_to_proto(biases: tuple[tuple[int, float], ...]) -> list[pb.TokenBias]:
    return [pb.TokenBias(token=token, bias=bias) for token, bias in biases]


def _sequences_to_proto(sequences: tuple[tuple[int, ...], ...]) -> list[pb.TokenSequence]:
    return [pb.TokenSequence(tokens=tokens) for tokens in sequences]


_TO_PROTO: Mapping[str, Callable[[Any], Any]] = {
    "logit_bias": _biases_to_proto,
    "bad_words": _sequences_to_proto,
    "grammar": grammar_to_proto,
}
_FROM_PROTO: Mapping[str, Callable[[Any], Any]] = {
    "logit_bias": lambda entries: tuple((entry.token, entry.bias) for entry in entries),
    "bad_words": lambda sequences: tuple(tuple(sequence.tokens) for sequence in sequences),
    "grammar": grammar_from_proto,
}


class _Field(NamedTuple):
    name: str
    may_lack: bool
    is_repeated: bool


_FIELDS = [
    _Field(field.name, field.has_presence, field.is_repeated)
    for field in pb.Sampling.DESCRIPTOR.fields
]
"""Read once: a descriptor makes each of them anew."""


def sampling_to_proto(params: SamplingParams) -> pb.Sampling:
    """Convert field by field, by name: what is None is left out."""
    given = {field.name: getattr(params, field.name) for field in _FIELDS}
    return pb.Sampling(
        **{
            name: _TO_PROTO[name](value) if name in _TO_PROTO else value
            for name, value in given.items()
            if value is not None
        }
    )


def sampling_from_proto(message: pb.Sampling) -> SamplingParams:
    """Convert field by field, by name: what was left out is None. Raises InvalidRequest for an
    unknown kind of grammar."""
    given = {field.name for field, _ in message.ListFields()}
    values: dict[str, Any] = {}
    for field in _FIELDS:
        value = getattr(message, field.name)
        if field.may_lack and field.name not in given:
            values[field.name] = None
        elif field.name in _FROM_PROTO:
            values[field.name] = _FROM_PROTO[field.name](value)
        else:
            values[field.name] = tuple(value) if field.is_repeated else value
    return SamplingParams(**values)
