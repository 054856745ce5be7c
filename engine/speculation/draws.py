"""Turns the logits of a pass into outputs: one token per request, or its accepted draft tokens and
one token more.

    logits [S, V] -> sample -> verified -> Answers -> blocks of rejected drafts go back to the pool
                                  |-> Speculation: how many were accepted
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import Tensor

from baton.core.clock import Clock
from baton.core.sampling import TokenLogprob
from baton.engine.blocks.block_pool import BlockPool
from baton.engine.passes.scoring import Scored
from baton.engine.request.answers import Answers
from baton.engine.request.request import Phase
from baton.engine.request.step_report import RequestOutput
from baton.engine.sampling.sampler import Sampled, sample
from baton.engine.sampling.sampling_plan import NOTHING, SamplingPlan
from baton.engine.schedule.drafted_chunks import ScheduledChunk
from baton.engine.schedule.persistent_batch import PersistentBatch
from baton.engine.schedule.verification import Run, runs_of, verified
from baton.engine.speculation.speculation import Speculation
from baton.kernels.products.vocabulary_screen import ScreenedTokens


class Draws:
    """Belongs to the engine's thread."""

    def __init__(
        self,
        answers: Answers,
        pool: BlockPool,
        eos_token_ids: Collection[int],
        clock: Clock,
        *,
        redraws: bool,
    ) -> None:
        """`redraws`: draft tokens are accepted by the published rule (rejection sampling) and not
        by comparison with the tokens that the model draws."""
        self._answers = answers
        self._pool = pool
        self._eos_token_ids = eos_token_ids
        self._clock = clock
        self._redraws = redraws

    def outputs(
        self,
        chunks: Sequence[ScheduledChunk],
        logits: Scored | None,
        batch: PersistentBatch | None,
        speculation: Speculation | None,
    ) -> tuple[RequestOutput, ...]:
        """Draw a token for each row of `logits` [S, V], unless they are known without them, and
        finish the requests that end with it."""
        if logits is None:
            return ()
        if batch is None and any(chunk.drafted for chunk in chunks):
            return self._verified(chunks, logits, speculation)
        if batch is not None:
            requests = batch.requests
        else:
            requests = tuple(c.request for c in chunks if c.request.awaits_token)
        if isinstance(logits, ScreenedTokens):
            tokens, are_finite, logprob_by_row = Sampled(*logits, {})
        else:
            plan = None if batch is None else batch.plan(logits.device)
            plan = plan or SamplingPlan([request.row for request in requests], logits.device)
            tokens, are_finite, logprob_by_row = sample(logits, plan, self._eos_token_ids)
        now = self._clock()
        return tuple(
            [
                self._answers.extend(
                    request, (token,), (logprob_by_row[row],) if row in logprob_by_row else (), now
                )
                if is_finite and request.is_prompt_finite
                else self._answers.fail_not_finite(request)
                for row, (request, token, is_finite) in enumerate(
                    zip(requests, tokens, are_finite, strict=True)
                )
            ]
        )

    def _verified(
        self,
        chunks: Sequence[ScheduledChunk],
        logits: Scored,
        speculation: Speculation | None,
    ) -> tuple[RequestOutput, ...]:
        """Outputs of a pass with draft tokens: each request gets its accepted draft tokens and the
        token drawn after them."""
        runs = runs_of(chunks)
        tokens, are_finite, logprob_by_row = self._sampled(runs, logits, speculation)
        now, outputs, first = self._clock(), [], 0
        refines = speculation is not None and speculation.refines and not self._redraws
        for run in runs:
            stop = first + len(run.rows)
            drawn, finite = tokens[first:stop], are_finite[first:stop]
            given = verified(run.drafted, drawn, finite)
            if refines and speculation is not None and run.drafted:
                speculation.drew(run.request, run.drafted, drawn, finite)
            said: tuple[TokenLogprob, ...] = ()
            if logprob_by_row:
                rows = range(first, first + len(given))
                said = tuple([logprob_by_row[row] for row in rows if row in logprob_by_row])
            outputs.append(self._settle(run, given, said, now, speculation))
            first = stop
        return tuple(outputs)

    def _sampled(
        self, runs: Sequence[Run], logits: Scored, speculation: Speculation | None
    ) -> Sampled:
        """The tokens of all rows of the runs."""
        places = [row for run in runs for row in run.logits_rows]
        if isinstance(logits, ScreenedTokens):
            return Sampled(*logits.of_rows(places), {})
        sampled = [row for run in runs for row in run.rows]
        if len(sampled) < len(logits):
            logits = logits[places]
        offered: list[int | None] = []
        drawn_from = NOTHING
        if self._redraws:
            offered = [token for run in runs for token in (*run.drafted, None)]
            drawn_from = _drawn_from(runs, speculation) if speculation else NOTHING
        plan = SamplingPlan(sampled, logits.device, offered, drawn_from=drawn_from)
        return sample(logits, plan, self._eos_token_ids)

    def _settle(
        self,
        run: Run,
        given: tuple[int, ...],
        logprobs: tuple[TokenLogprob, ...],
        now: float,
        speculation: Speculation | None,
    ) -> RequestOutput:
        """Give a request its tokens, and return the blocks of rejected draft tokens to the pool."""
        request = run.request
        request.num_drafted += len(run.drafted)
        if not given or not request.is_prompt_finite:
            return self._answers.fail_not_finite(request)
        if speculation is not None and run.drafted:
            speculation.verified(request, len(run.drafted), len(given) - 1)
        output = self._answers.extend(request, given, logprobs, now)
        request.num_accepted += max(0, len(output.tokens) - 1)
        if len(given) <= len(run.drafted) and request.phase is Phase.RUNNING:
            self._pool.shrink(request.holder, len(request.tokens))
        return output


def _drawn_from(runs: Sequence[Run], speculation: Speculation) -> dict[int, Tensor]:
    """By row: the distribution [V] that the row's draft token was drawn from, if there is one."""
    found: dict[int, Tensor] = {}
    first = 0
    for run in runs:
        if run.drafted:
            found |= dict(enumerate(speculation.drawn_from(run.request)[: len(run.drafted)], first))
        first += len(run.rows)
    return found
