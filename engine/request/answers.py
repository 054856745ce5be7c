"""Applies a pass's results to requests: next token, embedding, end, or error.

token -> appended -> may it be the last? -> leave | the grammar takes it
logits that are not finite, or a grammar that cannot go on -> leave, with an error
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite

from baton.core.clock import Clock
from baton.core.errors import BatonError, InvalidRequest, Unavailable
from baton.core.sampling import FinishReason, TokenLogprob
from baton.core.wording import count_of
from baton.engine.request.request import Request
from baton.engine.request.step_report import RequestOutput


class Answers:
    """`accepted` counts accepted drafted tokens as computed; `leave` removes a request from the
    engine; `discard` drops what it computed."""

    def __init__(
        self,
        *,
        clock: Clock,
        dtype: str,
        finish_reason: Callable[[Request], FinishReason | None],
        accepted: Callable[[Request, int], None],
        leave: Callable[[Request], None],
        discard: Callable[[Request], None],
    ) -> None:
        self._clock = clock
        self._dtype = dtype
        self._finish_reason = finish_reason
        self._accepted = accepted
        self._leave = leave
        self._discard = discard

    def extend(
        self,
        request: Request,
        tokens: tuple[int, ...],
        logprobs: tuple[TokenLogprob, ...],
        now: float,
    ) -> RequestOutput:
        """Append `tokens`: one drawn token, or several of which all but the last were drafted and
        computed in this pass. Those after the request's end are dropped."""
        reason, is_finished = None, False
        if request.continues_after(tokens):
            request.extend(tokens)
        else:
            for num_given, token in enumerate(tokens, 1):
                request.append(token)
                reason = self._finish_reason(request)
                is_finished = reason is not None or request.has_reached_own_limit
                if is_finished:
                    tokens, logprobs = tokens[:num_given], logprobs[:num_given]
                    break
        if len(tokens) > 1:
            self._accepted(request, len(tokens) - 1)
        if request.first_token_at is None:
            request.first_token_at = now
        if is_finished:
            self._leave(request)
        elif request.matcher is not None:
            try:
                request.matcher.accept(tokens)
            except InvalidRequest as error:
                return self._fail(request, error)
        return RequestOutput(
            request,
            is_finished,
            request.num_run,
            tokens,
            logprobs,
            () if request.prompt_logprobs is None else request.take_prompt_logprobs(),
            (),
            reason,
        )

    def embed(self, request: Request, vector: tuple[float, ...]) -> RequestOutput:
        """Finish a request for an embedding."""
        if not all(map(isfinite, vector)):
            return self.fail_not_finite(request)
        request.first_token_at = self._clock()
        self._leave(request)
        return RequestOutput(
            request=request,
            is_finished=True,
            num_run=request.num_run,
            embedding=vector,
            finish_reason=FinishReason.STOP,
        )

    def fail_not_finite(self, request: Request) -> RequestOutput:
        """Fail the request: its tokens and KV after a NaN or infinity would be silently wrong."""
        self._discard(request)
        error = Unavailable(
            f"the model's outputs are not finite after {count_of(len(request.tokens), 'token')}; "
            f"{self._dtype} may be too narrow for this model"
        )
        return self._fail(request, error)

    def _fail(self, request: Request, error: BatonError) -> RequestOutput:
        self._leave(request)
        return RequestOutput(
            request=request, is_finished=True, num_run=request.num_run, error=error
        )
