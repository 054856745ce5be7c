"""The fields that responses of Generate and Chat share: tokens, logprobs, finish reason."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from baton.core.messages import Receipt
from baton.core.sampling import TokenLogprob
from baton.gateway.requests.completion_request import CompletionRequest
from baton.gateway.requests.gateway import Gateway
from baton.gateway.requests.generations.choices import ChoiceDelta, Completion
from baton.gateway.requests.generations.completion_stream import Usage
from baton.gateway.requests.generations.prompt_progress import PromptProgress, with_prompt_progress
from baton.gateway.text.served_model import ServedModel
from baton.gateway.text.tokenizer import TextTokenizer
from baton.proto import inference_pb2 as pb

R = TypeVar("R", pb.GenerateResponse, pb.ChatResponse)

RECEIPT_FIELDS = [field.name for field in pb.Receipt.DESCRIPTOR.fields]


class ResponseFiller:
    """Fills the responses of one request."""

    def __init__(
        self,
        model: ServedModel,
        order: CompletionRequest,
        completion: Completion,
        *,
        returns_token_ids: bool,
    ) -> None:
        self._model = model
        self._order = order
        self._completion = completion
        self._returns_token_ids = returns_token_ids
        self._num_open = completion.num_choices

    def filled(
        self, response: R, part: ChoiceDelta, finish_reason: str | None, *, num_reasoning: int = 0
    ) -> R | None:
        """`response` already has its text. None if nothing is in it."""
        delta, tokenizer = part.delta, self._model.tokenizer
        response.logprobs.extend(logprobs(delta.logprobs, tokenizer))
        if self._returns_token_ids:
            response.token_ids.extend(delta.tokens)
        prompt, number = divmod(part.index, self._completion.choices_per_prompt)
        if part.is_first and number == 0:
            if self._order.options.prompt_logprobs is not None:
                response.prompt_logprobs.extend(logprobs(delta.prompt_logprobs, tokenizer))
            if self._returns_token_ids:
                response.prompt_token_ids.extend(self._order.prompts[prompt].tokens)
        if finish_reason is not None:
            response.finish_reason = finish_reason
            response.receipt.CopyFrom(receipt(self._completion.receipts[part.index]))
            self._num_open -= 1
            if not self._num_open:
                response.usage.CopyFrom(usage(self._completion.usage, num_reasoning))
        if not response.ByteSize():
            return None
        response.index = part.index
        return self.named(response)

    def named(self, response: R) -> R:
        """Set the ids of the response."""
        response.request_id = self._order.request_id
        response.model = self._model.named(self._order.adapter)
        return response


def watched(
    gateway: Gateway, order: CompletionRequest, completion: Completion
) -> AsyncGenerator[ChoiceDelta] | AsyncGenerator[ChoiceDelta | PromptProgress]:
    """The deltas of the completion, with the prompt's progress if that was asked for."""
    deltas = completion.deltas()
    if not order.returns_progress:
        return deltas
    current = partial(gateway.dispatcher.progress, completion.first_generation)
    return with_prompt_progress(deltas, current)


def prompt_progress(progress: PromptProgress) -> pb.PromptProgress:
    return pb.PromptProgress(**msgspec.structs.asdict(progress))


def logprobs(entries: Sequence[TokenLogprob], tokenizer: TextTokenizer) -> list[pb.TokenLogprob]:
    token_bytes = tokenizer.token_bytes
    return [
        pb.TokenLogprob(
            token_id=entry.token,
            token=token_bytes(entry.token),
            logprob=entry.logprob,
            top=[
                pb.TopLogprob(token_id=token, token=token_bytes(token), logprob=logprob)
                for token, logprob in entry.top
            ],
        )
        for entry in entries
    ]


def usage(counts: Usage, num_reasoning: int = 0) -> pb.Usage:
    return pb.Usage(
        prompt_tokens=counts.prompt_tokens,
        cached_tokens=counts.cached_tokens,
        cache_write_tokens=counts.cache_write_tokens,
        output_tokens=counts.output_tokens,
        reasoning_tokens=num_reasoning,
    )


def receipt(known: Receipt) -> pb.Receipt:
    return pb.Receipt(**{name: getattr(known, name) for name in RECEIPT_FIELDS})
