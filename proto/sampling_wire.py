"""How a request's sampling, and the grammar it follows, are written as protobuf."""

from __future__ import annotations

from baton.core.errors import InvalidRequest
from baton.core.messages import Grammar, GrammarKind, SamplingParams
from baton.proto import replica_pb2 as pb

_GRAMMAR_TO_PROTO = {
    GrammarKind.JSON_SCHEMA: pb.GRAMMAR_KIND_JSON_SCHEMA,
    GrammarKind.REGEX: pb.GRAMMAR_KIND_REGEX,
    GrammarKind.LARK: pb.GRAMMAR_KIND_LARK,
}
_GRAMMAR_FROM_PROTO = {number: kind for kind, number in _GRAMMAR_TO_PROTO.items()}


def sampling_to_proto(params: SamplingParams) -> pb.Sampling:
    return pb.Sampling(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        typical_p=params.typical_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=[pb.TokenBias(token=token, bias=bias) for token, bias in params.logit_bias],
        allowed_token_ids=params.allowed_token_ids,
        bad_words=[pb.TokenSequence(tokens=tokens) for tokens in params.bad_words],
        grammar=None if params.grammar is None else grammar_to_proto(params.grammar),
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens,
        stop_token_ids=params.stop_token_ids,
        ignore_eos=params.ignore_eos,
        num_logprobs=params.num_logprobs,
        num_prompt_logprobs=params.num_prompt_logprobs,
        seed=params.seed,
        choice=params.choice,
    )


def sampling_from_proto(message: pb.Sampling) -> SamplingParams:
    return SamplingParams(
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p,
        min_p=message.min_p,
        typical_p=message.typical_p,
        repetition_penalty=message.repetition_penalty,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        logit_bias=tuple((entry.token, entry.bias) for entry in message.logit_bias),
        allowed_token_ids=tuple(message.allowed_token_ids),
        bad_words=tuple(tuple(sequence.tokens) for sequence in message.bad_words),
        grammar=grammar_from_proto(message.grammar) if message.HasField("grammar") else None,
        max_tokens=message.max_tokens,
        min_tokens=message.min_tokens,
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        num_logprobs=message.num_logprobs if message.HasField("num_logprobs") else None,
        num_prompt_logprobs=(
            message.num_prompt_logprobs if message.HasField("num_prompt_logprobs") else None
        ),
        seed=message.seed,
        choice=message.choice,
    )


def grammar_to_proto(grammar: Grammar) -> pb.Grammar:
    return pb.Grammar(kind=_GRAMMAR_TO_PROTO[grammar.kind], source=grammar.source)


def grammar_from_proto(message: pb.Grammar) -> Grammar:
    """Raises InvalidRequest for a kind that this process does not know: it cannot be left out."""
    kind = _GRAMMAR_FROM_PROTO.get(message.kind)
    if kind is None:
        raise InvalidRequest(f"grammar of unknown kind {message.kind}", field="grammar")
    return Grammar(kind, message.source)
