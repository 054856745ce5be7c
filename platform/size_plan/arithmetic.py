"""The arithmetic behind an answer, line by line: what `--explain` prints."""

from __future__ import annotations

from collections.abc import Iterator

from baton.core.wording import count_of
from baton.platform.planner.mixed import mean_before
from baton.platform.planner.queueing import Service, chance_of_wait, wait_s
from baton.platform.size_plan.pass_time import BITS, PassTime
from baton.platform.size_plan.pools import Pool
from baton.platform.size_plan.question import FRONT_S, Question
from baton.platform.size_plan.size import Answer

GIGA, TERA, KILO = 1e9, 1e12, 1e3


def lines(answer: Answer) -> Iterator[str]:
    question, option = answer.question, answer.chosen
    yield from _kv(question, option.decode)
    if option.prefill is not None:
        yield from _prompts(question, option.prefill)
        yield from _queue(question, option.prefill)
        yield from _decoding(question, option.decode)
    else:
        yield from _prompts(question, option.decode)
        yield from _decoding(question, option.decode)
        yield from _mixed(question, option.decode)


def _kv(question: Question, pool: Pool) -> Iterator[str]:
    budget, load = pool.layout.budget, question.load
    yield (
        f"KV: {budget.kv_token_bytes:,} bytes a token and rank of {pool.layout.name}; "
        f"{budget.kv_bytes / GIGA:.1f} GB of them hold {budget.num_tokens:,} tokens, which are "
        f"{budget.num_tokens / load.held_tokens:.0f} requests of {load.held_tokens:.0f}"
    )


def _pass(question: Question, what: str, took: PassTime) -> str:
    chip, expected = question.accelerator, question.efficiencies[1]
    rate = chip.tflop_s[question.precision]
    compute_s = took.work.flops / (rate * TERA * expected.arithmetic)
    read_s = took.work.num_bytes / (chip.read_gb_s * GIGA * expected.read)
    return (
        f"{what}: {took.work.flops / TERA:.3g} TFLOP / ({rate:,.0f} TFLOP/s x "
        f"{expected.arithmetic:g}) = {compute_s * KILO:.1f} ms; {took.work.num_bytes / GIGA:.3g} GB"
        f" / ({chip.read_gb_s:,.0f} GB/s x {expected.read:g}) = {read_s * KILO:.1f} ms; parts one "
        f"by one {took.compute_s * KILO:.1f} + ranks {took.talk_s * KILO:.1f} + constant "
        f"{took.pass_s * KILO:.1f} = {took.seconds * KILO:.1f} ms"
    )


def _prompts(question: Question, pool: Pool) -> Iterator[str]:
    num_tokens = min(round(question.load.prompt_tokens), pool.scheduler.max_chunk)
    took = pool.layout.passes.prompt(num_tokens, round(question.load.cached_tokens))
    yield _pass(question, f"a pass of {num_tokens} tokens of a prompt on {pool.layout.name}", took)


def _queue(question: Question, pool: Pool) -> Iterator[str]:
    load, promise, num_replicas = question.load, question.promise, pool.num_replicas
    service = Service(pool.model.mean_prefill_s(load), load.prompt_cv2)
    asked = load.rate * service.mean_s
    chance = chance_of_wait(asked, num_replicas) if asked < num_replicas else 1.0
    waits_s = wait_s(load.rate, service, num_replicas, promise.share)
    yield (
        f"prefill: {load.rate:g} a second x {service.mean_s * KILO:.0f} ms = {asked:.2f} replicas' "
        f"time, {num_replicas} are {asked / num_replicas:.0%} busy; {chance:.0%} wait (Erlang C), "
        f"{promise.share:.0%} at most {waits_s * KILO:.0f} ms; with the prompt's own passes and "
        f"{FRONT_S * KILO:.0f} ms on the way {pool.need.seconds * KILO:.0f} ms"
    )


def _decoding(question: Question, pool: Pool) -> Iterator[str]:
    load, need = question.load, pool.need
    num_requests = need.typical_batch
    took = pool.layout.passes.step(num_requests, load.context)
    yield _pass(
        question,
        f"a step of {num_requests} that decode at {load.context:.0f} on {pool.layout.name}",
        took,
    )
    peak = question.promise.peak(need.batch)
    yield (
        f"decode: {load.rate:g} a second x {load.output_tokens:.0f} tokens x "
        f"{need.typical_s * KILO:.1f} ms / {count_of(pool.num_replicas, 'replica')} = "
        f"{need.batch:.1f} at once on each, {peak:.0f} for {question.promise.share:.0%} of the time"
    )


def _mixed(question: Question, pool: Pool) -> Iterator[str]:
    assert pool.first is not None
    load, chunk = question.load, pool.scheduler.max_chunk
    piece = min(round(load.prompt_tokens), chunk)
    before = mean_before(load, chunk)
    took = pool.layout.passes.step(pool.need.typical_batch, load.context, piece, before)
    what = f"the same step with {piece} tokens of a prompt behind {before:.0f} of it"
    yield _pass(question, what, took)
    yield (
        f"prompts: {load.rate:g} a second x {max(load.prompt_tokens / chunk, 1):.1f} such steps = "
        f"{pool.first.busy:.0%} of the time of {pool.num_replicas}"
    )


def weights_told(question: Question) -> str:
    return f"{question.precision}, {BITS[question.precision]} bits a weight"
