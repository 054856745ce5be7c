"""Tables of instruments fit a terminal of 80 columns, with the largest numbers they may have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from baton.engine.mesh.mesh import Mesh
from baton.engine.models.config.description import architecture_of
from baton.engine.models.registry import family_of
from baton.kv_transfer.transports import TRANSPORTS
from baton.platform.cli.runs import replay, verify
from baton.platform.config.deployment import configure
from baton.platform.instruments import bench_report
from baton.platform.instruments.ceilings import Ceilings
from baton.platform.instruments.engine_bench import Measured, Point
from baton.platform.instruments.pass_cost import Work
from baton.platform.instruments.regime import Diagnosis, Regime
from baton.platform.instruments.speculation_bench import (
    DraftUse,
    SpeculationPoint,
    speculation_table,
)
from baton.platform.load_generator import report as load_report
from baton.platform.load_generator.generator import Record
from baton.platform.load_generator.slo import Slo
from baton.platform.load_generator.summary import PERCENTS, Distribution, summarize
from baton.platform.machine.accelerators import accelerator
from baton.platform.machine.datasheet import Datasheet
from baton.platform.models.model_shape import Part
from baton.platform.planner.capacity import Load, Promise
from baton.platform.simulator.replay import Replayed, ReplayedRequest
from baton.platform.size_plan import report as size_report
from baton.platform.size_plan.named_shapes import NAMED_SHAPES
from baton.platform.size_plan.pools import Pool
from baton.platform.size_plan.question import Question
from baton.platform.size_plan.size import size
from baton.platform.verify.cases import CASES
from baton.platform.verify.verdict import Difference, Verdict
from baton.router.policies.by_name import ABLATIONS, POLICIES


def longest(names: Iterable[str]) -> str:
    return max(map(str, names), key=len)


def of_verify(console: Console) -> list[str]:
    gap = Difference(prompt_len=300, position=23, expected=151_234, found=None, top2_gap=0.1)
    verdict = Verdict(
        case=longest(case.name for case in CASES),
        transport=longest(TRANSPORTS),
        num_prompts=12,
        num_equal=11,
        num_near_ties=11,
        kv_bytes=12_345_678_901,
        num_drafted=1000,
        num_accepted=1000,
        ms=123_456.7,
        first_difference=gap,
        problems=("3 pieces were corrupt",),
    )
    verify.show(console, [verdict], "demo, bfloat16")
    return [verdict.case, verdict.transport, "11/12", "12345678901", "100%", "123457", "wrong"]


def of_bench_serve(console: Console) -> list[str]:
    slow = Distribution(num=1, mean=12_345.6, max=12_345.6, by_percent=dict.fromkeys(PERCENTS, 1e4))
    setting = load_report.Setting(
        url="http://127.0.0.1:8000", endpoint="/v1/chat/completions", model="demo", load="all",
        sizing="exact", seed=0, slo=Slo(), notes=(),
    )  # fmt: skip
    summary = replace(summarize(Record(), Slo()), ttft=slow, itl=slow, tpot=slow, e2e=slow)
    load_report.show(console, setting, summary, (), ())
    return ["TTFT", "ITL", "TPOT", "E2E", "12,345,600", "10,000,000"]


def of_bench_engine(console: Console) -> list[str]:
    ceilings = Ceilings(read_bytes_s=4.8e12, flops_s=989e12)
    regime = longest(Regime)
    point = Point(
        batch=1024,
        context=1_048_576,
        num_tokens=1_234_567,
        seconds=12.345_67,
        work={Part.QKV: Work(flops=10**15, num_bytes=10**14)},
        part_s={},
        around_s=0.0,
        ceilings=ceilings,
        diagnosis=Diagnosis(regime=Regime(regime), share=1.0, reason="it is", experiment="none"),
    )
    measured = Measured(prefill=[point], decode=[point])
    bench_report.show(console, measured, ceilings, Datasheet("H200"), "demo")
    return ["1,048,576", "1024", "12,345.67", "100,000", "8100.0", "4800", regime.split()[0]]


def of_bench_speculation(console: Console) -> list[str]:
    use = DraftUse(
        num_proposed=123_456,
        num_verified=123_456,
        num_accepted=100_000,
        acceptance_at=[0.95] * 8,
        tokens_per_step=10.25,
        draft_s=0.5,
        seconds=1.0,
    )
    point = SpeculationPoint(batch=1024, plain_tokens_s=123_456.7, ratio=10.25, use=use)
    console.print(speculation_table([point], "drafted by suffix"))
    return ["1024", "123,457", "10.25", "123,456", "19%", "50.0%", ".95 .95 .95 .95"]


def of_replay(console: Console) -> list[str]:
    policy = longest((*POLICIES, *ABLATIONS))
    requests = [ReplayedRequest(request_id="1", was_s=12_345.6, would_be_s=12_345.6)] * 100_000
    replayed = Replayed(
        policy=policy, captured_policy="cost", slo_ttft_s=1e5, num_left_out=0, requests=requests
    )
    console.print(replay.table_of([replayed]))
    return [f"{policy}, simulated", "100,000", "12345.600"]


def of_plan_size(console: Console) -> list[str]:
    shape = NAMED_SHAPES["llama-3.1-8b"]
    config = dict(shape.config)
    answer = size(
        Question(
            config=configure(None, {"model": shape.model}),
            model=family_of(architecture_of(config)).parse_config(config),
            accelerator=accelerator("h200"),
            precision="bf16",
            load=Load(rate=10.0, prompt_tokens=16_000, output_tokens=400),
            promise=Promise(ttft_s=1.0, itl_s=0.05),
            max_ranks=1,
            price=2.0,
            is_disaggregated=True,
        )
    )
    prefill, decode = map(large, (answer.chosen.prefill, answer.chosen.decode))
    chosen = replace(answer.chosen, prefill=prefill, decode=decode)
    large_answer = replace(
        answer, chosen=chosen, prefill_layouts=[prefill], decode_layouts=[decode]
    )
    size_report.show(console, large_answer, is_explained=True)
    counted = f"{prefill.num_replicas} ({prefill.num_accelerators})*"
    return ["TP4 DP16 EP64", counted, "115,300", "low efficiency", "of them", "= left"]


def large(pool: Pool | None) -> Pool:
    assert pool is not None
    layout = replace(pool.layout, mesh=Mesh(tensor=4, data=16, expert=64))
    need = replace(pool.need, num_replicas=4096, is_kept=False, seconds=115.3, batch=1024.0)
    return replace(pool, layout=layout, need=need)


@pytest.mark.parametrize(
    "draw",
    [of_verify, of_bench_serve, of_bench_engine, of_bench_speculation, of_replay, of_plan_size],
)
def test_nothing_is_cut_on_80_columns(draw: Callable[[Console], list[str]]) -> None:
    console = Console(file=StringIO(), width=80, highlight=False)

    cells = draw(console)

    assert isinstance(console.file, StringIO)
    shown = console.file.getvalue()
    assert "…" not in shown
    assert [cell for cell in cells if cell not in shown] == []
