"""The span of one generation: request, outcome and receipt.

Attributes follow OpenTelemetry's conventions for generative AI, with the receipt as `baton.*`.
Prompts and outputs are not recorded.
"""

from __future__ import annotations

from dataclasses import asdict, replace

from baton.core.messages import Receipt
from baton.core.tracing import NO_SPAN, Value
from baton.gateway.requests.generations.generation import Generation


class GenerationSpan:
    def __init__(self, generation: Generation, model: str) -> None:
        self._generation = generation
        self._model = model
        self._span = NO_SPAN

    def begin(self) -> None:
        self._span = self._generation.call.span.child("generate")
        if self._span.is_recording:
            self._span.set(self._asked())

    def within(self, generation: Generation) -> Generation:
        """Return the generation with this span as the parent of its attempts."""
        if self._span is NO_SPAN:
            return generation
        return replace(generation, call=generation.call._replace(span=self._span))

    def first_token(self) -> None:
        self._span.record("first token", 0.0)

    def end(self, outcome: str, receipt: Receipt) -> None:
        """End the span. Safe to repeat, and if it never began."""
        if self._span.is_recording:
            said = {f"baton.{key}": value for key, value in asdict(receipt).items()}
            said |= {
                "baton.outcome": outcome,
                "gen_ai.usage.input_tokens": receipt.prompt_tokens,
                "gen_ai.usage.output_tokens": receipt.output_tokens,
                "gen_ai.usage.cache_read.input_tokens": receipt.cached_tokens,
            }
            self._span.set(said)
        self._span.end("" if outcome in ("ok", "cancelled") else outcome)

    def _asked(self) -> dict[str, Value]:
        generation, sampling = self._generation, self._generation.sampling
        asked: dict[str, Value] = {
            "gen_ai.operation.name": generation.call.operation or "text_completion",
            "gen_ai.provider.name": "baton",
            "gen_ai.request.model": self._model,
            "gen_ai.response.model": self._model,
            "baton.request_id": generation.request_id,
            "baton.prompt_tokens": len(generation.prompt),
        }
        if generation.tenant:
            asked["baton.tenant"] = generation.tenant
        if generation.pooling is None:
            asked |= {
                "gen_ai.request.max_tokens": sampling.max_tokens,
                "gen_ai.request.temperature": sampling.temperature,
                "gen_ai.request.top_p": sampling.top_p,
            }
        return asked
