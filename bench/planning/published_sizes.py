"""Forecasts of `baton plan size` beside published measurements of deployments.

Throughput is that of a saturated deployment: as many concurrent requests as the KV cache holds,
prompts computed in the same steps where the publication did so. A line a deployment has the
published tokens a second, the forecast with its range, and their ratio.

    python -m bench.planning.published_sizes
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from baton.engine.mesh.mesh import Mesh
from baton.engine.models.config.description import architecture_of
from baton.engine.models.registry import family_of
from baton.platform.config.deployment import configure
from baton.platform.machine.accelerators import accelerator
from baton.platform.planner.capacity import Load, Promise
from baton.platform.planner.mixed import mixed_with
from baton.platform.size_plan.efficiency import ON_GPU, Efficiency
from baton.platform.size_plan.named_shapes import NAMED_SHAPES
from baton.platform.size_plan.pools import MIXED_CHUNKS, FittingLayout, fitting_layout, model_of
from baton.platform.size_plan.question import Question
from bench.harness.command_line import benchmark_parser

PATIENT = Promise(ttft_s=1e9, itl_s=1e9)
MOST_RUNNING = 2048
NUM_HALVINGS = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    what: str
    shape: str
    chip: str
    mesh: Mesh
    precision: str
    kv_dtype: str = "auto"
    prompt: int
    output: int
    measures: str = "output"
    """`output`: output tokens a second with prefill included; `prefill` or `decode`: tokens a
    second of that alone, on a machine of eight."""
    batch: int = 0
    """Decoding requests a rank, where that was published."""
    tokens_s: float
    source: str


TENSORRT = "TensorRT-LLM, docs/source/performance/perf-overview.md, of version 1.0"
PUBLISHED = (
    Published(
        what="Llama 3.1 8B, fp8, 1 H100, 1000/1000", shape="llama-3.1-8b", chip="h100-sxm",
        mesh=Mesh(), precision="fp8", kv_dtype="fp8", prompt=1000, output=1000, tokens_s=15_220,
        source=TENSORRT,
    ),
    Published(
        what="Llama 3.3 70B, fp8, 2 H100, 1000/1000", shape="llama-3.3-70b", chip="h100-sxm",
        mesh=Mesh(tensor=2), precision="fp8", kv_dtype="fp8", prompt=1000, output=1000,
        tokens_s=4_205, source=TENSORRT,
    ),
    Published(
        what="Llama 3.3 70B, fp8, 1 H200, 1000/1000", shape="llama-3.3-70b", chip="h200",
        mesh=Mesh(), precision="fp8", kv_dtype="fp8", prompt=1000, output=1000, tokens_s=2_909,
        source=TENSORRT,
    ),
    Published(
        what="Llama 3.1 405B, fp8, 8 H100, 1000/1000", shape="llama-3.1-405b", chip="h100-sxm",
        mesh=Mesh(tensor=8), precision="fp8", kv_dtype="fp8", prompt=1000, output=1000,
        tokens_s=2_919, source=TENSORRT,
    ),
    Published(
        what="Qwen3 235B-A22B, fp8, 8 H200, 1000/1000", shape="qwen3-235b-a22b", chip="h200",
        mesh=Mesh(data=8, expert=8), precision="fp8", kv_dtype="fp8", prompt=1000, output=1000,
        tokens_s=23_789, source=TENSORRT,
    ),
    Published(
        what="DeepSeek-V3, fp8, prefill on 32 H100, a node", shape="deepseek-v3", chip="h100-sxm",
        mesh=Mesh(data=32, expert=32), precision="fp8", prompt=2000, output=100,
        measures="prefill", tokens_s=52_300,
        source="https://lmsys.org/blog/2025-05-05-large-scale-ep",
    ),
    Published(
        what="DeepSeek-V3, fp8, decode on 72 H100 (here 64), a node", shape="deepseek-v3",
        chip="h100-sxm", mesh=Mesh(data=64, expert=64), precision="fp8", prompt=2000, output=100,
        measures="decode", batch=256, tokens_s=22_300,
        source="https://lmsys.org/blog/2025-05-05-large-scale-ep; the batch from memory",
    ),
)  # fmt: skip


def main() -> None:
    benchmark_parser(__doc__).parse_args()
    for one in PUBLISHED:
        question = _question(one)
        layout = fitting_layout(question, one.mesh)
        if not isinstance(layout, FittingLayout):
            print(f"{one.what}: {layout.reason}")
            continue
        low, expected, high = (_tokens_s(one, question, layout, each) for each in ON_GPU)
        print(
            f"{one.what}: published {one.tokens_s:,.0f}, forecast {expected:,.0f} "
            f"({low:,.0f} to {high:,.0f}; {expected / one.tokens_s:.2f}); {one.source}"
        )


def _question(one: Published) -> Question:
    shape = NAMED_SHAPES[one.shape]
    changes = {
        "model": shape.model,
        "decode.cache.kv_dtype": one.kv_dtype,
        "decode.cache.memory_fraction": 0.9,
    }
    return Question(
        config=configure(None, changes),
        model=family_of(architecture_of(shape.config)).parse_config(dict(shape.config)),
        accelerator=accelerator(one.chip),
        precision=one.precision,
        load=Load(rate=1.0, prompt_tokens=one.prompt, output_tokens=one.output),
        promise=PATIENT,
        max_ranks=one.mesh.size,
    )


def _tokens_s(
    one: Published, question: Question, layout: FittingLayout, efficiency: Efficiency
) -> float:
    passes = layout.passes.at(efficiency)
    nodes = one.mesh.size / 8
    if one.measures == "prefill":
        chunk = max(8192 // one.prompt, 1) * one.prompt
        return chunk * one.mesh.data / passes.prompt_s(chunk, 0) / nodes
    if one.measures == "decode":
        return one.batch * one.mesh.data / passes.step_s(one.batch, one.prompt) / nodes
    return max(_mixed_tokens_s(question, layout, chunk, efficiency) for chunk in MIXED_CHUNKS)


def _mixed_tokens_s(
    question: Question, layout: FittingLayout, chunk: int, efficiency: Efficiency
) -> float:
    model = replace(model_of(layout, chunk, MOST_RUNNING), passes=layout.passes.at(efficiency))
    places, load = layout.mesh.data, question.load

    def keeps(rate: float) -> bool:
        _, later = mixed_with(replace(load, rate=rate), model, PATIENT, places)
        return later.batch * load.held_tokens <= model.num_kv_tokens

    low, high = 0.0, 1.0
    while keeps(high):
        low, high = high, 2 * high
    for _ in range(NUM_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low * load.output_tokens


if __name__ == "__main__":
    main()
