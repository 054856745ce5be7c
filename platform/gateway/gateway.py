"""What both faces share: one model, one dispatcher, and the way from a prompt to a completion."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from baton.core.errors import ContextExceeded
from baton.core.ids import RequestId
from baton.platform.gateway.api_keys import ApiKeys
from baton.platform.gateway.completion_stream import CompletionStream
from baton.platform.gateway.config import GatewayConfig
from baton.platform.gateway.generation import Dispatcher, Generation
from baton.platform.gateway.metrics import GatewayMetrics
from baton.platform.gateway.sampling_options import (
    SamplingOptions,
    SamplingRules,
    check_prompt,
    check_stops,
    resolve_sampling,
)
from baton.platform.gateway.served_model import ServedModel
from baton.platform.gateway.text.output_text import OutputText
from baton.platform.observe.traces import traces_from_environment

LONG_TEXT_CHARS = 16_384
"""Longer texts are tokenised on another thread, so that the streams of others go on meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOrder:
    """What a face has understood of a request, not yet checked."""

    request_id: RequestId
    prompt: tuple[int, ...]
    options: SamplingOptions
    default_max_tokens: int | None = None
    """None: what is left of the context."""
    field_by_option: Mapping[str, str] = field(default_factory=dict)
    """The caller's names, for error messages."""
    cache_salt: str = ""
    time_left_s: float | None = None


class Gateway:
    def __init__(
        self, *, model: ServedModel, dispatcher: Dispatcher, config: GatewayConfig
    ) -> None:
        self.model = model
        self.dispatcher = dispatcher
        self.config = config
        self.keys = ApiKeys(config.api_keys)
        self.metrics = GatewayMetrics()
        self.traces = traces_from_environment()
        self.is_draining = False
        self._last_max_model_len = 0

    @property
    def max_model_len(self) -> int:
        """Of the replicas; while none is connected, of those before, or what the model allows."""
        self._last_max_model_len = self.dispatcher.max_model_len or self._last_max_model_len
        return self._last_max_model_len or self.model.context_len

    def is_ready(self) -> bool:
        return not self.is_draining and self.dispatcher.is_ready()

    async def encode(
        self, text: str, *, add_special_tokens: bool, prompt_field: str
    ) -> tuple[int, ...]:
        """Raises ContextExceeded, naming the field, if `text` is far too long to be read at all."""
        tokenizer = self.model.tokenizer
        if len(text) <= LONG_TEXT_CHARS:
            return tokenizer.encode(text, add_special_tokens=add_special_tokens)
        limit = self.max_model_len
        if await asyncio.to_thread(tokenizer.exceeds, text, limit):
            raise ContextExceeded(
                f"this model's maximum context length is {limit} tokens, and the prompt has more "
                "than twice as many; shorten it",
                field=prompt_field,
            )
        return await asyncio.to_thread(
            tokenizer.encode, text, add_special_tokens=add_special_tokens
        )

    def complete(self, order: CompletionOrder) -> CompletionStream:
        """Check the order and prepare its stream; nothing runs until that is entered.

        Raises InvalidRequest, naming the field as the caller did.
        """
        rules = SamplingRules(
            defaults=self.model.sampling,
            vocab_size=self.model.vocab_size,
            max_model_len=self.max_model_len,
            default_max_tokens=order.default_max_tokens,
            field_by_option=order.field_by_option,
        )
        check_prompt(order.prompt, rules)
        stops = check_stops(order.options, rules)
        sampling = resolve_sampling(order.options, rules, num_prompt=len(order.prompt))
        allowed_s = self.config.request_timeout_s
        generation = Generation(
            request_id=order.request_id,
            prompt=order.prompt,
            sampling=sampling,
            salt=order.cache_salt.encode(),
            time_left_s=min(allowed_s, order.time_left_s or allowed_s),
        )
        output = OutputText(
            self.model.tokenizer, order.prompt, stops=stops, min_tokens=sampling.min_tokens
        )
        return CompletionStream(
            self.dispatcher, generation, output, metrics=self.metrics, traces=self.traces
        )
