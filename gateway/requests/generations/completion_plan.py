"""Plans the generations of an order: checked, numbered, each with its own id.

order: P prompts, n, best_of  ->  P x max(n, best_of) generations, of which P x n are given back
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from baton.core.sampling import SamplingParams
from baton.gateway.requests.completion_request import CompletionRequest, Prompt
from baton.gateway.requests.generations.generation import Generation, TimeLimits
from baton.gateway.requests.options import SamplingOptions
from baton.gateway.requests.request_ids import unique_request_id
from baton.gateway.requests.sampling_options import (
    SamplingRules,
    check_prompt,
    check_stops,
    num_choices,
    resolve_sampling,
)
from baton.gateway.requests.session_keys import session_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionPlan:
    generations: tuple[tuple[Generation, ...], ...]
    """The choices of each prompt. All are placed near the first, whose blocks they share."""
    stops: tuple[str, ...]
    num_returned: int
    """Choices returned for each prompt."""
    is_prompt_only: bool
    """`max_tokens` 0 with `echo`: one token is generated, to run the prompt, and dropped."""


def plan_completion(
    order: CompletionRequest,
    rules: SamplingRules,
    *,
    salt: bytes,
    max_choices: int,
    time_limits: TimeLimits,
) -> CompletionPlan:
    """Raises InvalidRequest, naming the field as the caller did."""
    num_returned, num_drawn = num_choices(order.options, rules)
    num_all = len(order.prompts) * num_drawn
    if num_all > max_choices:
        name = "n" if order.options.best_of is None else "best_of"
        remedy = f"asks for {num_all} choices in all; at most {max_choices} can be"
        raise rules.invalid(name, remedy)
    if order.is_streamed and num_drawn != num_returned:
        raise rules.invalid("best_of", f"above {rules.field('n')} cannot be streamed")
    is_prompt_only = order.has_echo and order.options.max_tokens == 0
    options = _drawn_options(order, is_prompt_only, is_ranked=num_drawn != num_returned)
    priority = order.caller.priority(options.priority, rules.field("priority"))
    generations: list[tuple[Generation, ...]] = []
    for prompt in order.prompts:
        check_prompt(prompt.tokens, rules, field=prompt.field)
        sampling = resolve_sampling(
            options, rules, num_prompt=len(prompt.tokens), grammar=order.grammar
        )
        choices = _choices(
            order, prompt, sampling, salt=salt, priority=priority, time_limits=time_limits
        )
        generations.append(tuple(next(choices) for _ in range(num_drawn)))
    return CompletionPlan(
        generations=tuple(generations),
        stops=check_stops(options, rules),
        num_returned=num_returned,
        is_prompt_only=is_prompt_only,
    )


def _choices(
    order: CompletionRequest,
    prompt: Prompt,
    sampling: SamplingParams,
    *,
    salt: bytes,
    priority: int,
    time_limits: TimeLimits,
) -> Iterator[Generation]:
    first = Generation(
        request_id=unique_request_id(order.request_id),
        prompt=prompt.tokens,
        sampling=sampling,
        salt=salt,
        adapter=order.adapter,
        tenant=order.caller.tenant,
        owner=order.caller.owner,
        session=session_of(order.caller, order.session),
        cache_points=prompt.cache_points,
        priority=priority,
        slo=order.caller.slo,
        time_left_s=time_limits.time_left_s,
        max_wait_s=time_limits.max_wait_s,
        call=order.caller.call,
    )
    first = _as_parked(first, order)
    yield first
    # The prompt's logprobs are the same for all choices, and need all of it computed.
    sampling = replace(sampling, num_prompt_logprobs=None)
    while True:
        sampling = replace(sampling, choice=sampling.choice + 1)
        request_id = unique_request_id(order.request_id)
        yield replace(first, request_id=request_id, sampling=sampling, near=first.request_id)


def _as_parked(first: Generation, order: CompletionRequest) -> Generation:
    """The generation with its parking data, or with the state parked at another gateway. Only a
    stream of a single generation can be rewritten event by event."""
    parked = order.caller.parked
    if parked is not None:  # as resolved at the first gateway, including the seed
        request = parked.request
        first = replace(first, prompt=request.prompt, sampling=request.sampling, parked=parked)
    is_alone = len(order.prompts) == 1 and (order.options.n or 1) == 1
    is_told_more = order.returns_progress or first.sampling.num_prompt_logprobs is not None
    is_ranked = (order.options.best_of or 1) > 1
    if not is_alone or is_told_more or is_ranked:
        return first
    return replace(first, parking=order.caller.parking)


def _drawn_options(
    order: CompletionRequest, is_prompt_only: bool, *, is_ranked: bool
) -> SamplingOptions:
    """Sampling options for the generation, given what is returned."""
    options = order.options
    if is_prompt_only:
        options = msgspec.structs.replace(options, max_tokens=1)
    if is_ranked and options.logprobs is None:
        options = msgspec.structs.replace(options, logprobs=0)
    if order.has_echo and order.options.logprobs is not None:
        num_prompt = max(order.options.logprobs, options.prompt_logprobs or 0)
        options = msgspec.structs.replace(options, prompt_logprobs=num_prompt)
    return options
