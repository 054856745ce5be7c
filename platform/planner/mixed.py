"""Decode replicas that compute their prompts, too: what is foreseen without prefill replicas.

of a second    r L / c  steps have a piece of c tokens of a prompt      (r requests, L tokens)
               the rest of the time goes to steps that only decode
from token     the step with a piece, where more than 1 - share of all steps have one
first token    the line + L / c steps with a piece
"""

from __future__ import annotations

from math import ceil, inf, sqrt

from baton.platform.planner.capacity import (
    BUSIEST,
    MAX_REPLICAS,
    MIN_BATCH,
    Load,
    Need,
    Promise,
    ReplicaModel,
    most_held,
    settled,
)
from baton.platform.planner.queueing import Service, wait_s

HALF = 0.5


def mixed_need(load: Load, model: ReplicaModel, promise: Promise) -> tuple[Need, Need]:
    """The fewest replicas that keep TTFT and ITL: their needs as to first tokens, and to later
    ones. If none could, as many as are not overrun."""
    num_replicas = 1
    found = mixed_with(load, model, promise, num_replicas)
    least = None
    while num_replicas < MAX_REPLICAS:
        first, later = found
        if first.is_kept and later.is_kept:
            return found
        if not _is_overrun(found):
            least = least or found
            if later.batch < MIN_BATCH and first.busy < 1 - promise.share:
                break  # further ones would change nothing
        num_replicas += 1
        found = mixed_with(load, model, promise, num_replicas)
    return least or found


def mixed_with(
    load: Load, model: ReplicaModel, promise: Promise, num_replicas: int
) -> tuple[Need, Need]:
    """The predictions for these numbers of replicas."""
    passes, piece, rate = model.passes, model.max_chunk, load.rate / num_replicas
    batch = max(_batch(load, model, rate), load.num_open / num_replicas)
    steps = _steps(load, model, rate, batch) if batch < inf else 0.0
    if not steps:
        overrun = Need(
            num_replicas=num_replicas,
            busy=inf,
            seconds=inf,
            typical_s=inf,
            batch=inf,
            is_kept=False,
        )
        return overrun, overrun
    num_pieces = load.prompt_tokens / piece
    part = round(_piece(load, piece)), mean_before(load, piece)
    with_piece_s = passes.step_s(max(round(batch), 1), load.context, *part)
    service = Service(max(num_pieces, 1.0) * with_piece_s, load.prompt_cv2)
    plain_s = passes.step_s(max(round(batch), 1), load.context)  # that a prompt finds under way
    longest_s = service.mean_s * (1 + promise.deviations * sqrt(load.prompt_cv2)) + plain_s
    busy = rate * service.mean_s
    share_with_piece = rate * max(num_pieces, 1.0) / steps
    peak = max(promise.peak(batch), 1.0)
    is_slow = share_with_piece > 1 - promise.share
    itl_s = passes.step_s(ceil(peak), load.context, *(part if is_slow else ()))
    ttft_s = longest_s + model.overhead_s + wait_s(load.rate, service, num_replicas, promise.share)
    first = Need(
        num_replicas=num_replicas,
        busy=busy,
        seconds=ttft_s,
        typical_s=service.mean_s + model.overhead_s + wait_s(load.rate, service, num_replicas, 0.5),
        is_kept=ttft_s <= promise.ttft_s,
    )
    later = Need(
        num_replicas=num_replicas,
        busy=batch / max(most_held(load, model), 1),
        seconds=itl_s,
        typical_s=with_piece_s if share_with_piece > HALF else plain_s,
        batch=batch,
        is_kept=itl_s <= promise.itl_s and peak <= max(most_held(load, model), 1),
    )
    return first, later


def _is_overrun(found: tuple[Need, Need]) -> bool:
    return found[1].batch == inf


def _piece(load: Load, piece: int) -> float:
    """Tokens of a prompt in a step that has some: short prompts are no longer."""
    return min(load.prompt_tokens, piece)


def mean_before(load: Load, piece: int) -> float:
    """Tokens of the prompt before a piece, on average over its pieces: pairs are linear in them."""
    return load.cached_tokens + max(load.prompt_tokens - piece, 0.0) / 2


def _steps(load: Load, model: ReplicaModel, rate: float, batch: float) -> float:
    """A second, while any request is there: with a piece, and without. 0 if pieces take it all."""
    piece = _piece(load, model.max_chunk)
    pieces = rate * load.prompt_tokens / piece
    before = mean_before(load, model.max_chunk)
    busy = pieces * model.step_s(batch, load.context, round(piece), before)
    if busy >= BUSIEST:
        return 0.0
    return pieces + (1 - busy) / model.step_s(batch, load.context)


def _batch(load: Load, model: ReplicaModel, rate: float) -> float:
    def following(batch: float) -> float:
        steps = _steps(load, model, rate, batch)
        return rate * load.output_tokens / steps if steps else inf

    return settled(following, 2 * max(most_held(load, model), 1))
