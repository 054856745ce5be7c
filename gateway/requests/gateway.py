"""The core of a gateway, shared by HTTP and gRPC: one model, one dispatcher, completions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import chain

from baton.core.chaos import Chaos
from baton.core.clock import Clock, monotonic
from baton.core.errors import (
    ContextExceeded,
    ModelForbidden,
    ModelNotFound,
    StreamNotFound,
    Unavailable,
)
from baton.core.metrics import exposition
from baton.core.parking import TakeStream
from baton.gateway.access.api_keys import ApiKeys, Caller, known_keys
from baton.gateway.access.cache_salt import CacheSalts
from baton.gateway.access.config import GatewayConfig
from baton.gateway.access.rate_limits import RateLimits
from baton.gateway.grammars.output_grammars import OutputGrammars
from baton.gateway.requests.completion_request import CompletionRequest, Prompt
from baton.gateway.requests.generations.choices import Completion, PromptChoices
from baton.gateway.requests.generations.completion_plan import plan_completion
from baton.gateway.requests.generations.completion_stream import CompletionStream
from baton.gateway.requests.generations.generation import Dispatcher, Generation, TimeLimits
from baton.gateway.requests.generations.generation_run import GenerationRun
from baton.gateway.requests.metrics import GatewayMetrics
from baton.gateway.requests.readiness import NOBODY, Missing, Wanted
from baton.gateway.requests.reporting import SILENT, Reporting
from baton.gateway.requests.sampling_options import SamplingRules
from baton.gateway.resumable.keeper import StreamKeeper
from baton.gateway.storage.storage import Storage, storage_of
from baton.gateway.text.echo import EchoedPrompt
from baton.gateway.text.output_text import OutputText
from baton.gateway.text.served_model import ServedModel
from baton.gateway.text.tokenizer import CHARS_PER_TOKEN

log = logging.getLogger(__name__)

LEFT_BY_BACKGROUND = 0.5
"""The share of a tenant's rate limits that its batches leave to interactive requests."""
LONG_TEXT_CHARS = 16_384
"""Longer texts are tokenised on another thread, so that other streams are not delayed."""


class Gateway:
    def __init__(  # noqa: PLR0913 - one parameter a collaborator
        self,
        *,
        model: ServedModel,
        dispatcher: Dispatcher,
        config: GatewayConfig,
        wanted: Wanted = NOBODY,
        reporting: Reporting = SILENT,
        chaos: Chaos | None = None,
        clock: Clock = monotonic,
    ) -> None:
        """`wanted`: the configured replicas, for reports of what is missing. `chaos`: fault
        injection of this process, if enabled."""
        self.chaos = chaos
        self._wanted = wanted
        self.model = model
        self.dispatcher = dispatcher
        self.config = config
        self.keys = self._known_keys(config)
        self.limits = RateLimits(config.tenants, clock)
        self.salts = CacheSalts(config.cache_secret)
        self.grammars = OutputGrammars(model)
        self.metrics = GatewayMetrics()
        self.tracer = reporting.tracer
        self.planner = reporting.planner
        self.call_watch = reporting.calls
        self._has_vllm_names = reporting.has_vllm_names
        self.keeper = StreamKeeper(
            max_bytes=config.max_resumable_bytes, window_s=config.resume_window_s
        )
        self.storage: Storage | None = storage_of(config.storage)
        """Storage of responses, files and batches; None if off."""
        self.is_draining = False
        self._last_max_model_len = 0

    def reconfigure(self, config: GatewayConfig, wanted: Wanted) -> None:
        """Use new limits, keys and tenants from now on. Running requests and ports stay."""
        self.config = config
        self._wanted = wanted
        self.keys = self._known_keys(config)
        self.limits.reconfigure(config.tenants)
        self.keeper.streams.max_bytes = config.max_resumable_bytes
        self.keeper.streams.window_s = config.resume_window_s

    def _known_keys(self, config: GatewayConfig) -> ApiKeys:
        known = known_keys(config)
        useless = sorted({one.entry.name for one in known if not self.usable_names(one.caller)})
        if useless:
            log.warning(
                "these API keys are for other models than %s, by their `models` or their tenant's, "
                "and are refused: %s",
                self.model.name,
                ", ".join(useless),
            )
        return ApiKeys(known)

    @property
    def max_model_len(self) -> int:
        """The replicas' context limit; while none is connected, the last known one, or the
        model's."""
        self._last_max_model_len = self.dispatcher.max_model_len or self._last_max_model_len
        return self._last_max_model_len or self.model.context_len

    def usable_names(self, caller: Caller) -> tuple[str, ...]:
        """The names under which this caller may use the model, then those of its adapters. Access
        to the model does not include access to adapters."""
        model = self.model
        adapters = (caller.usable((adapter,)) for adapter in model.adapters)
        return (*caller.usable(model.names), *chain.from_iterable(adapters))

    def check_model(self, name: str | None, caller: Caller) -> str:
        """Return the adapter that a request names; empty for the model alone, which no name means,
        too. Raises ModelNotFound, or ModelForbidden if this caller may not use it.
        """
        usable, adapters = self.usable_names(caller), self.model.adapters
        if name and name in usable:
            return name if name in adapters else ""
        if not name and not adapters.keys() >= set(usable):
            return ""
        known = " or ".join(f"`{one}`" for one in usable) or "none of this server's models"
        if not name or name in self.model.names or name in adapters:
            what = f"the model `{name}`" if name else "this server's model"
            raise ModelForbidden(
                f"this API key does not have access to {what}: it is for {known}, as its `models` "
                "or its tenant's say (gateway.tenants)",
                field="model",
            )
        raise ModelNotFound(
            f"the model `{name}` does not exist; this server has {known}", field="model"
        )

    def check_any_model(self, caller: Caller) -> None:
        """Raises ModelForbidden if this caller may use neither the model nor an adapter."""
        if not self.usable_names(caller):
            self.check_model(None, caller)

    def is_ready(self) -> bool:
        return not self.is_draining and self.dispatcher.is_ready()

    def missing(self) -> tuple[Missing, ...]:
        return self.dispatcher.missing(self._wanted)

    def metrics_page(self) -> str:
        """The metrics of this process; replicas have their own pages."""
        families = [*self.metrics.families(), *self.dispatcher.metrics()]
        if self.planner is not None:
            families.extend(self.planner.families())
        if self.storage is not None:
            families.extend(self.storage.families())
        page = exposition(families, {"model": self.model.name})
        if self._has_vllm_names:
            page += exposition(self.metrics.vllm_families(), {"model_name": self.model.name})
        return page

    async def encode(
        self,
        text: str,
        pair: str | None = None,
        *,
        add_special_tokens: bool,
        prompt_field: str,
    ) -> tuple[int, ...]:
        """Tokenise a text, or a pair as the tokenizer joins it. Raises ContextExceeded, naming the
        field, if one is far too long to tokenise at all.
        """
        tokenizer = self.model.tokenizer
        texts = (text,) if pair is None else (text, pair)
        if sum(map(len, texts)) <= LONG_TEXT_CHARS:
            return tokenizer.encode(*texts, add_special_tokens=add_special_tokens)
        limit = self.max_model_len
        if any([await asyncio.to_thread(tokenizer.exceeds, each, limit) for each in texts]):
            raise ContextExceeded(
                f"this model's maximum context length is {limit} tokens, and the prompt has more "
                "than twice as many; shorten it",
                field=prompt_field,
            )
        return await asyncio.to_thread(
            tokenizer.encode, *texts, add_special_tokens=add_special_tokens
        )

    async def beginning(self, text: str, num_tokens: int) -> str:
        """See TextTokenizer; reads only as much of the text as can have so many tokens."""
        if num_tokens > 0:
            text = text[: CHARS_PER_TOKEN * num_tokens]
        cut = self.model.tokenizer.beginning
        if len(text) <= LONG_TEXT_CHARS:
            return cut(text, num_tokens)
        return await asyncio.to_thread(cut, text, num_tokens)

    def complete(self, order: CompletionRequest) -> Completion:
        """Check the order, count it, and prepare its choices, as `prepare` does.

        Raises InvalidRequest, naming the field as the caller did, and RateLimited.
        """
        completion = self.prepare(order)
        if order.caller.parked is None:  # already counted at its first gateway
            self.admit(order.caller, sum(len(one.tokens) for one in order.prompts))
        return completion

    def admit(self, caller: Caller, num_prompt_tokens: int) -> None:
        """Count a request towards its tenant's limits. Raises RateLimited."""
        leaves = LEFT_BY_BACKGROUND if caller.is_background else 0.0
        self.limits.admit(caller.tenant, num_prompt_tokens, leaves=leaves)

    def prepare(self, order: CompletionRequest) -> Completion:
        """Check the order; it runs, and counts, only once its deltas are read.

        Raises InvalidRequest, naming the field as the caller did.
        """
        self.model.check_generates()
        plan = plan_completion(
            order,
            self.sampling_rules(order),
            salt=self.salts.salt(order.caller.tenant, order.cache_salt, order.adapter),
            max_choices=self.config.max_choices,
            time_limits=self.time_limits(order.caller, order.time_left_s),
        )
        prompts = [
            PromptChoices(
                [self._stream(order, generation, plan.stops) for generation in generations],
                echo=self._echo(prompt) if order.has_echo else None,
                is_prompt_only=plan.is_prompt_only,
            )
            for prompt, generations in zip(order.prompts, plan.generations, strict=True)
        ]
        keeps_logprobs = order.options.logprobs is not None
        return Completion(prompts, num_returned=plan.num_returned, keeps_logprobs=keeps_logprobs)

    def time_limits(self, caller: Caller, asked_s: float | None) -> TimeLimits:
        """Time limits for a request of the caller that asks for `asked_s`."""
        limit_s, max_wait_s = caller.time_limit_s, caller.max_wait_s
        limit_s = self.config.request_timeout_s if limit_s is None else limit_s
        return TimeLimits(
            time_left_s=max(0.0, limit_s if asked_s is None else min(limit_s, asked_s)),
            max_wait_s=self.config.max_wait_s if max_wait_s is None else max_wait_s,
        )

    def sampling_rules(self, order: CompletionRequest) -> SamplingRules:
        return SamplingRules(
            defaults=self.model.sampling,
            vocab_size=self.model.vocab_size,
            max_model_len=self.max_model_len,
            encode=partial(self.model.tokenizer.encode, add_special_tokens=False),
            default_max_tokens=order.default_max_tokens,
            field_by_option=order.field_by_option,
        )

    def _echo(self, prompt: Prompt) -> EchoedPrompt:
        return EchoedPrompt.of(self.model.tokenizer, prompt.tokens, prompt.text)

    def _stream(
        self, order: CompletionRequest, generation: Generation, stops: Sequence[str]
    ) -> CompletionStream:
        output = OutputText(
            self.model.tokenizer,
            generation.prompt,
            stops=stops,
            min_tokens=generation.sampling.min_tokens,
            shown_special=order.shown_special,
            includes_stop=order.includes_stop,
        )
        return CompletionStream(self.run(generation), output)

    async def end_stream(self, stream_id: str, *, owner: bytes, kinds: tuple[str, ...]) -> None:
        """End a resumable stream at whichever gateway has it; decode replicas forget it, too.

        Raises StreamNotFound, or Unavailable if it is not here and a replica that may have it
        cannot be asked.
        """
        wanted = TakeStream(stream_id, owner, kinds, is_end=True)
        try:
            self.keeper.end(stream_id, owner=owner, kinds=kinds)
        except StreamNotFound:
            if await self.dispatcher.take_stream(wanted) is None:
                raise
            return
        with suppress(Unavailable):  # a replica that cannot be asked forgets it by itself, soon
            await self.dispatcher.take_stream(wanted)

    def run(self, generation: Generation) -> GenerationRun:
        spend = partial(self.limits.charge, generation.tenant)
        return GenerationRun(
            self.dispatcher,
            generation,
            metrics=self.metrics,
            spend=spend,
            model=self.model.named(generation.adapter),
        )
