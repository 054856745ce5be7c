"""Draft features of prompts that a prefill replica computed: transferred, or computed again.

    sizes      from shapes alone: the bytes to transfer a token's features against the FLOPs to
               compute them on the decode replica, as microseconds on a given link and device, and
               what the engine chooses
    ways       the same for models small enough to run here, measured: a prefill pass, and a
               handoff over gRPC between two processes; does the engine choose the faster way?
    measured   the demo model with one prefill and one decode replica in this process: acceptance,
               bytes and times with features and without, beside a single engine

Features (MTP, EAGLE) can only be computed by the model itself. The KV of a draft model is computed
where it is needed, or elsewhere for the same FLOPs and then has to be transferred as well.

    python -m bench.speculation.draft_features [--rounds 3] [--output 64] [--link 1.25]
                                               [--device 400] [--only ways ...]
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from baton.core.kv_layout import OUTPUTS, DraftFeatures, KvLayout
from baton.core.replicas import Role
from baton.core.sampling import SamplingParams
from baton.engine.assemble import engine_around, load_draft
from baton.engine.checkpoint.active_parameters import active_parameters
from baton.engine.checkpoint.load import LoadedModel, load_model
from baton.engine.config import CacheConfig, EngineConfig
from baton.engine.engine import Engine
from baton.engine.models.config.description import architecture_of
from baton.engine.models.registry import family_of
from baton.engine.request.request import Request
from baton.engine.speculation.carrying import SPEEDS, Needs, Speeds, Way
from baton.engine.speculation.feature_keeper import MAX_SHARE, share_of
from baton.kv_transfer.sending.outbox import MAX_PIECE_BYTES
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.doctor.demand import kv_layout, served_dtype
from baton.platform.instruments.source_prompts import SourcePrompts
from baton.platform.models.model_folder import built_in_folder, find_model
from baton.platform.size_plan.named_shapes import LLAMA_3, NAMED_SHAPES
from baton.platform.verify.fleets import running_fleet
from bench.harness.command_line import benchmark_parser
from bench.harness.report import surroundings, table
from bench.harness.small_llama import model_folder
from bench.transfer.__main__ import measure as measure_transfers
from bench.transfer.__main__ import num_blocks_of
from bench.transfer.sender import LAYOUT as TRANSFER_LAYOUT

Rows = Iterator[tuple[str | float, ...]]
LLAMA_1B = {
    **LLAMA_3,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "head_dim": 64,
    "tie_word_embeddings": True,
}
SHAPES = {name: shape.config for name, shape in NAMED_SHAPES.items()} | {"llama-3.2-1b": LLAMA_1B}
HEADS = (
    ("eagle", "llama-3.1-8b", "auto"),
    ("eagle", "llama-3.1-8b", "fp8"),
    ("eagle", "llama-3.1-8b", "int4"),
    ("eagle", "qwen3-8b", "auto"),
    ("eagle", "qwen3-30b-a3b", "auto"),
    ("eagle", "llama-3.3-70b", "auto"),
    ("mtp", "deepseek-v3", "auto"),
)
DRAFTS = (("llama-3.1-8b", "llama-3.2-1b"), ("llama-3.3-70b", "llama-3.1-8b"))
PROMPT_LEN, NUM_PROMPTS, NUM_DRAFTED = 600, 8, 3


@dataclass(frozen=True, slots=True)
class Shape:
    layout: KvLayout
    width: int
    num_active: int
    """Active parameters a token."""

    @classmethod
    def of(cls, name: str, kv_dtype: str) -> Shape:
        raw = dict(SHAPES[name])
        family = family_of(architecture_of(raw))
        config = family.parse_config(raw)
        with torch.device("meta"):
            model = family.build(config)
        dtype = served_dtype("auto", config, "cuda")
        layout = kv_layout(CacheConfig(kv_dtype=kv_dtype), config, dtype)  # type: ignore[arg-type]
        return cls(layout, config.hidden_size, active_parameters(model))

    @property
    def token_bytes(self) -> float:
        return self.layout.block_bytes / self.layout.block_size


def sizes(speeds: Speeds) -> Rows:
    """A row a model: bytes and time to transfer a token, to compute it, and the engine's choice."""
    for method, name, kv_dtype in HEADS:
        model = Shape.of(name, kv_dtype)
        features = DraftFeatures(kind=OUTPUTS, width=model.width, dtype="bfloat16")
        share = share_of(features, model.layout)
        needs = Needs(carried_bytes=features.token_bytes, computed_flops=2 * model.num_active)
        carry_us, compute_us = _us(needs, "carry", speeds), _us(needs, "compute", speeds)
        chosen = needs.cheaper(speeds) if share <= MAX_SHARE else "neither: blocks grow too much"
        what = f"{method}, {name}, KV {kv_dtype}"
        yield what, features.token_bytes, 100 * share, carry_us, compute_us, chosen
    for name, small in DRAFTS:
        model, draft = Shape.of(name, "auto"), Shape.of(small, "auto")
        flops = 2 * draft.num_active
        needs = Needs(
            carried_bytes=draft.token_bytes, carried_flops=flops, computed_flops=flops
        )  # whoever computes it
        carry_us, compute_us = _us(needs, "carry", speeds), _us(needs, "compute", speeds)
        what = f"draft, {name} by {small}"
        share = 100 * draft.token_bytes / model.token_bytes
        chosen = needs.cheaper(speeds)
        yield what, draft.token_bytes, share, carry_us, compute_us, chosen


def _us(needs: Needs, way: Way, speeds: Speeds) -> float:
    return 1e6 * needs.seconds(way, speeds)


@dataclass(frozen=True, slots=True)
class Measured:
    num_drafted: int
    num_accepted: int
    num_missing: int
    kv_bytes: int
    first_ms: float
    """Median time to the first token; below, the median time from there until the KV is adopted."""
    transfer_ms: float
    total_s: float
    outputs: Sequence[Sequence[int]]


async def measure(
    config: DeploymentConfig, prompts: Sequence[Sequence[int]], num_output: int
) -> Measured:
    folder = find_model(config.model)
    loaded = load_model(folder, dtype=config.dtype, device="cpu")
    draft = load_draft(config.decode.speculation, folder, loaded, "cpu")

    def make(role: Role, engine: EngineConfig) -> Engine:
        return engine_around(loaded, engine, "cpu", draft=draft)

    sampling = SamplingParams(temperature=0.0, max_tokens=num_output, ignore_eos=True)
    async with running_fleet(make, config) as fleet:
        await fleet.ask(tuple(range(5, 5 + PROMPT_LEN)), sampling)  # the first builds and connects
        started = time.perf_counter()
        answers = [await fleet.ask(tuple(prompt), sampling) for prompt in prompts]
        total_s = time.perf_counter() - started
        speculation = fleet.decode.core.engine.speculation
        assert speculation is not None
        num_missing = int(speculation.metrics()["draft_missing_tokens_total"])
    receipts = [answer.receipt for answer in answers]
    return Measured(
        sum(receipt.drafted_tokens for receipt in receipts),
        sum(receipt.accepted_tokens for receipt in receipts),
        num_missing,
        sum(receipt.kv_bytes for receipt in receipts),
        median(receipt.queue_ms + receipt.prefill_ms for receipt in receipts),
        median(receipt.transfer_ms for receipt in receipts),
        total_s,
        [answer.tokens for answer in answers],
    )


def ways(num_rounds: int) -> Rows:
    """A row a model: bytes a token, estimated and measured microseconds, and the choice by each."""
    link_s = asyncio.run(_seconds_per_byte())
    speeds = SPEEDS["cpu"]
    with model_folder() as dummy_folder:
        demo, draft = (load_model(find_model(name)) for name in ("demo", "draft"))
        dummy = load_model(dummy_folder, load_format="dummy")
        for name, model in (("demo", demo), ("65 million random weights", dummy)):
            width, dtype = model.model.width, model.info.dtype
            features = DraftFeatures(kind=OUTPUTS, width=width, dtype=dtype)
            needs = Needs(carried_bytes=features.token_bytes, computed_flops=2 * model.num_active)
            yield _way(f"eagle, {name}", needs, speeds, link_s, _prefill_s(model, num_rounds))
        layout, flops = draft.info.layout(16), 2 * draft.num_active
        size = layout.block_bytes / layout.block_size
        needs = Needs(carried_bytes=size, carried_flops=flops, computed_flops=flops)
        yield _way("draft, demo by draft", needs, speeds, link_s, _prefill_s(draft, num_rounds))


def _way(
    what: str, needs: Needs, speeds: Speeds, link_s: float, computed_s: float
) -> tuple[str | float, ...]:
    made_s = computed_s * needs.carried_flops / needs.computed_flops
    carried_s = made_s + needs.carried_bytes * link_s
    quicker: Way = "carry" if carried_s <= computed_s else "compute"
    return (
        what, needs.carried_bytes, _us(needs, "carry", speeds), _us(needs, "compute", speeds),
        needs.cheaper(speeds), 1e6 * carried_s, 1e6 * computed_s, quicker,
    )  # fmt: skip


async def _seconds_per_byte() -> float:
    """Seconds per byte, from the difference of a larger and a smaller handoff."""
    small, large = 1, 16
    found = await measure_transfers(("grpc",), (small, large), MAX_PIECE_BYTES, is_quick=True)
    seconds = {size: median(found[size, "grpc"]) for size in (small, large)}
    num_bytes = (num_blocks_of(large) - num_blocks_of(small)) * TRANSFER_LAYOUT.block_bytes
    return (seconds[large] - seconds[small]) / num_bytes


def _prefill_s(model: LoadedModel, num_rounds: int) -> float:
    """Seconds to prefill a token with one engine: the median of all runs but the first."""
    engine = engine_around(model, EngineConfig(cache=CacheConfig(prefix_caching=False)), "cpu")
    found = []
    for number in range(num_rounds + 1):
        prompt = [2 + at % (model.info.vocab_size - 2) for at in range(PROMPT_LEN)]
        engine.add(Request(str(number), prompt, sampling=SamplingParams(max_tokens=1)))
        started = time.perf_counter()
        while engine.has_work:
            engine.step()
        found.append((time.perf_counter() - started) / PROMPT_LEN)
    return median(found[1:])


def measured(num_rounds: int, num_output: int) -> Rows:
    """A row a way, of the median round. Raises RuntimeError if tokens differ."""
    speculation: dict[str, Any] = {
        "method": "eagle",
        "features": "on",
        "model": str(built_in_folder("eagle")),
        "max_tokens": NUM_DRAFTED,
        "adaptive": False,
    }
    changes = {
        "model": "demo",
        "dtype": "float32",
        "transfer.transport": "grpc",
        "prefill.cache.num_blocks": 512,
        "decode.cache.num_blocks": 512,
    }
    source = SourcePrompts(find_model("demo"), 1)
    prompts = [source.prompt(PROMPT_LEN, str(seed)) for seed in range(NUM_PROMPTS)]
    ways: dict[str, dict[str, Any]] = {
        "one engine alone": {"prefill.replicas": 0},
        "handed over, features off": {"decode.speculation": {**speculation, "features": "off"}},
        "handed over with features": {},
    }
    base = override(DeploymentConfig(), {**changes, "decode.speculation": speculation})
    found: dict[str, list[Measured]] = {way: [] for way in ways}
    for _ in range(num_rounds):
        for way, changed in ways.items():
            found[way].append(asyncio.run(measure(override(base, changed), prompts, num_output)))
    first, *others = [each.outputs for rounds in found.values() for each in rounds]
    if any(other != first for other in others):
        raise RuntimeError("tokens differ")
    for way, rounds in found.items():
        one = rounds[0]
        yield (
            way,
            one.num_accepted / one.num_drafted,
            1 + one.num_accepted / (NUM_PROMPTS * (num_output - 1) - one.num_accepted),
            one.num_missing,
            one.kv_bytes / NUM_PROMPTS / PROMPT_LEN,
            median(each.first_ms for each in rounds),
            median(each.transfer_ms for each in rounds),
            median(each.total_s for each in rounds) * 1e3 / NUM_PROMPTS,
        )


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--link", type=float, default=1.25, help="GB/s between replicas")
    parser.add_argument("--device", type=float, default=400.0, help="TFLOP/s of a decode replica")
    parser.add_argument("--only", nargs="+", choices=("sizes", "ways", "measured"))
    args = parser.parse_args()
    print(surroundings(), "\n")
    speeds = Speeds(link_bytes_s=1e9 * args.link, device_flops_s=1e12 * args.device)
    tables: dict[str, tuple[tuple[str, ...], Callable[[], Rows]]] = {
        "sizes": (
            ("", "bytes/token", "% of KV", "carry, us", "compute, us", "chosen"),
            lambda: sizes(speeds),
        ),
        "ways": (
            (
                "", "bytes/token", "carry, us", "compute, us", "chosen",
                "carry, us, timed", "compute, us, timed", "quicker",
            ),
            lambda: ways(args.rounds),
        ),
        "measured": (
            (
                "", "accepted", "tokens/pass", "missing", "bytes/token",
                "first, ms", "transfer, ms", "request, ms",
            ),
            lambda: measured(args.rounds, args.output),
        ),
    }  # fmt: skip
    for name, (header, rows) in tables.items():
        if not args.only or name in args.only:
            print(table(header, rows()), "\n")


if __name__ == "__main__":
    main()
