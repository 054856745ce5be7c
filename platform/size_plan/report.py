"""An answer: tables for people, a tree for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from baton.core.wording import count_of
from baton.platform.layout_plan.report import shown
from baton.platform.planner.capacity import Load
from baton.platform.simulator.fleet.figures import FleetFigures
from baton.platform.size_plan.arithmetic import lines, weights_told
from baton.platform.size_plan.deployment import deployment_of, devices_of
from baton.platform.size_plan.pass_time import PassTime
from baton.platform.size_plan.pools import Pool
from baton.platform.size_plan.served_bits import why_not_served
from baton.platform.size_plan.size import Answer, Cost, Interval, Option

MAX_LAYOUTS = 12
SAME_SHARE = 1e-6
NEVER = 1e6
"""Seconds that are no forecast any more."""


def show(console: Console, answer: Answer, *, is_explained: bool) -> None:
    question, load, promise = answer.question, answer.question.load, answer.question.promise
    chip = question.accelerator
    console.print(
        f"{question.config.model_name} in {weights_told(question)}, on {chip.name}: "
        f"{chip.memory_gib:.3g} GiB, {chip.read_gb_s:,.0f} GB/s, "
        f"{chip.tflop_s[question.precision]:,.3g} TFLOP/s ({chip.source})"
    )
    console.print(
        f"{load.rate:g} requests a second, {load.prompt_tokens:.0f} tokens in{_cached(load)} and "
        f"{load.output_tokens:.0f} out; for {promise.share:.0%} a first token within "
        f"{_ms(promise.ttft_s)} ms and the next within {_ms(promise.itl_s)} ms"
    )
    pools = [(name, pool) for name, pool in _pools(answer.chosen) if pool is not None]
    console.print(_memory(pools))
    console.print(_rooflines(answer, pools))
    console.print(_layouts(answer))
    console.print(f"Chosen: {_told(answer.chosen)}. {answer.reason}.")
    if not answer.chosen.is_kept:
        console.print("The promise is not kept: no layout here is fast enough, however many.")
    console.print(_forecast(answer))
    if answer.cost is not None:
        console.print(_cost(answer.cost))
    if is_explained:
        for line in lines(answer):
            console.print(f"- {line}")
    if why := why_not_served(question):
        console.print(f"\n# no baton.yaml: {why}")
        return
    console.print("\n# baton.yaml")
    console.print(yaml_of(answer))


def _cached(load: Load) -> str:
    return f" behind {load.cached_tokens:.0f} that caches hold" if load.cached_tokens else ""


def yaml_of(answer: Answer) -> str:
    return msgspec.yaml.encode(deployment_of(answer.question, answer.chosen)).decode().rstrip()


def tree(answer: Answer) -> dict[str, Any]:
    question, forecast = answer.question, answer.forecast
    why = why_not_served(question)
    return {
        "model": question.config.model_name,
        "precision": question.precision,
        "accelerator": msgspec.to_builtins(asdict(question.accelerator)),
        "load": asdict(question.load),
        "promise": asdict(question.promise),
        "chosen": _option(answer.chosen),
        "other": None if answer.other is None else _option(answer.other),
        "reason": answer.reason,
        "forecast": {name: asdict(getattr(forecast, name)) for name in type(forecast).__slots__},
        "cost": None if answer.cost is None else asdict(answer.cost),
        "prefill_layouts": [_pool(pool) for pool in answer.prefill_layouts],
        "decode_layouts": [_pool(pool) for pool in answer.decode_layouts],
        "refused": [asdict(one) for one in answer.refused],
        "arithmetic": list(lines(answer)),
        "config": None if why else deployment_of(question, answer.chosen),
        "why_no_config": why,
        "devices": msgspec.to_builtins(devices_of(question, answer.chosen)),
    }


def _pools(option: Option) -> Sequence[tuple[str, Pool | None]]:
    return ("prefill", option.prefill), ("decode", option.decode)


def _option(option: Option) -> dict[str, Any]:
    return {
        "accelerators": option.num_accelerators,
        "is_kept": option.is_kept,
        **{name: None if pool is None else _pool(pool) for name, pool in _pools(option)},
    }


def _pool(pool: Pool) -> dict[str, Any]:
    return {
        "layout": pool.layout.name,
        "ranks": pool.layout.mesh.size,
        "replicas": pool.num_replicas,
        "accelerators": pool.num_accelerators,
        "max_batch_tokens": pool.scheduler.max_batch_tokens,
        "max_running": pool.scheduler.max_running,
        "memory": asdict(pool.layout.budget),
        "kv_tokens": pool.layout.budget.num_tokens,
        "need": asdict(pool.need),
        "first": None if pool.first is None else asdict(pool.first),
    }


def _told(option: Option) -> str:
    parts = [
        f"{pool.num_replicas} {name} of {pool.layout.name}"
        for name, pool in _pools(option)
        if pool is not None
    ]
    return f"{' and '.join(parts)}, {option.num_accelerators} accelerators"


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(
        title=title, title_justify="left", box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    return table


def _memory(pools: Sequence[tuple[str, Pool]]) -> Table:
    table = _table(
        "memory of a rank", ("", *(f"{name} {pool.layout.name}" for name, pool in pools))
    )
    budgets = [pool.layout.budget for _, pool in pools]
    for name, values in (
        ("device", [one.device_bytes for one in budgets]),
        ("- runtime (assumed)", [one.runtime_bytes for one in budgets]),
        ("- weights", [one.weight_bytes for one in budgets]),
        ("- largest pass", [one.pass_bytes for one in budgets]),
        ("= left", [one.left_bytes for one in budgets]),
        ("KV", [one.kv_bytes for one in budgets]),
        ("KV of a token", [one.kv_token_bytes for one in budgets]),
    ):
        table.add_row(name, *(shown(value) for value in values))
    table.add_row("tokens", *(f"{one.num_tokens:,}" for one in budgets))
    return table


def _rooflines(answer: Answer, pools: Sequence[tuple[str, Pool]]) -> Table:
    question = answer.question
    ridge = question.accelerator.ridge(question.precision)
    table = _table(
        f"rooflines; the ridge is at {ridge:.0f} FLOPs a byte",
        ("pass", "FLOPs/byte", "bound", "ms", "of them\nranks"),
    )
    load = question.load
    for name, pool in pools:
        if name == "prefill" or pool.first is not None:
            num_tokens = min(round(load.prompt_tokens), pool.scheduler.max_chunk)
            took = pool.layout.passes.prompt(num_tokens, round(load.cached_tokens))
            _add_pass(table, f"{num_tokens} of a prompt, {pool.layout.name}", took, ridge)
        if name == "decode":
            for num_requests in dict.fromkeys((1, pool.need.typical_batch)):
                took = pool.layout.passes.step(num_requests, load.context)
                _add_pass(table, f"{num_requests} decode, {pool.layout.name}", took, ridge)
    return table


def _add_pass(table: Table, what: str, took: PassTime, ridge: float) -> None:
    bound = "arithmetic" if took.work.intensity >= ridge else "memory"
    table.add_row(what, f"{took.work.intensity:.1f}", bound, _ms(took.seconds), _ms(took.talk_s))


def _layouts(answer: Answer) -> Table:
    table = _table(
        "layouts: replicas and accelerators of a pool apart; * does not keep the promise",
        ("layout", "KV\ntokens", "prefill", "TTFT\nms", "decode", "at\nonce", "ITL\nms"),
    )
    decode = {pool.layout.name: pool for pool in answer.decode_layouts}
    for pool in answer.prefill_layouts[:MAX_LAYOUTS]:
        other = decode[pool.layout.name]
        table.add_row(
            pool.layout.name,
            f"{pool.layout.budget.num_tokens / 1e3:,.0f}k",
            _counted(pool),
            _ms(pool.need.seconds),
            _counted(other),
            f"{other.need.batch:.0f}",
            _ms(other.need.seconds),
        )
    not_told = len(answer.prefill_layouts) - MAX_LAYOUTS
    more = f"{not_told} more, and " if not_told > 0 else ""
    if answer.refused:
        table.caption = f"{more}{len(answer.refused)} layouts refused; --json shows why"
    return table


def _counted(pool: Pool) -> str:
    return f"{pool.num_replicas} ({pool.num_accelerators}){'' if pool.need.is_kept else '*'}"


def _forecast(answer: Answer) -> Table:
    low, expected, high = answer.question.efficiencies
    table = _table(
        "forecast", ("", f"{high.name} efficiency", expected.name, f"{low.name} efficiency")
    )
    forecast, share = answer.forecast, f"{answer.question.promise.share:.0%}"
    for name, interval in (
        ("TTFT, half, ms", forecast.ttft_p50_s),
        (f"TTFT, {share}", forecast.ttft_s),
        ("ITL, half, ms", forecast.itl_p50_s),
        (f"ITL, {share}", forecast.itl_s),
    ):
        table.add_row(name, *(_ms(value) for value in _values(interval)))
    rates = _values(forecast.most_rate)[::-1]
    load = answer.question.load
    table.add_row("requests/s, at most", *(f"{rate:.3g}" for rate in rates))
    table.add_row("tokens/s out, at most", *(f"{rate * load.output_tokens:,.0f}" for rate in rates))
    return table


def _values(interval: Interval) -> tuple[float, float, float]:
    return interval.low, interval.expected, interval.high


def _cost(cost: Cost) -> str:
    return (
        f"cost: {cost.per_hour:.2f} an hour; a million tokens in {cost.per_million_in:.3f}, out "
        f"{cost.per_million_out:.3f}, at this load"
    )


def _ms(seconds: float) -> str:
    if seconds > NEVER:
        return "overrun"
    milliseconds = seconds * 1e3
    return f"{milliseconds:,.{0 if milliseconds >= 100 else 1}f}"


def show_simulated(console: Console, answer: Answer, figures: FleetFigures) -> None:
    table = _table(
        f"forecast and simulator, {count_of(figures.num_requests, 'request')}, milliseconds",
        ("", "TTFT, half", "90%", "ITL, half", "90%", "tokens/s out"),
    )
    forecast, load = answer.forecast, answer.question.load
    is_90 = abs(answer.question.promise.share - 0.9) < SAME_SHARE
    table.add_row(
        "forecast",
        _ms(forecast.ttft_p50_s.expected),
        _ms(forecast.ttft_s.expected) if is_90 else "",
        _ms(forecast.itl_p50_s.expected),
        _ms(forecast.itl_s.expected) if is_90 else "",
        f"{load.rate * load.output_tokens:,.0f}",
    )
    num_tokens = figures.num_requests * load.output_tokens
    table.add_row(
        "simulated",
        *map(_ms, (figures.p50_s, figures.p90_s, figures.itl_p50_s, figures.itl_p90_s)),
        f"{num_tokens / figures.duration_s:,.0f}",
    )
    console.print(table)
