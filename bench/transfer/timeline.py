"""Draws when each layer of a prompt is computed on P, hashed, sent, and written on D.

One prompt through a prefill and a decode replica in this process, their gRPC servers on loopback,
with a model of random weights. Each replica is observed from outside: wrappers around its hooks,
its outbox and its transport forward all calls and record their times.

    python -m bench.transfer.timeline --out transfer.png [--transport NAME] [--tokens N] [--chunk N]

"sent" lasts from when a piece is lent to the transport until it is given back, and "D writes" from
its arrival until it is written and verified; both include waiting. Transports that hash while they
send (tcp, shm) have no row "P hashes".
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib import pyplot
from matplotlib.patches import Patch

from baton.core.ids import ReplicaId, new_request_id
from baton.core.replicas import ReplicaAddress, Role
from baton.core.sampling import SamplingParams
from baton.decode_service.worker import DecodeWorker
from baton.gateway.requests.generations.generation import Generation
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.offline.local_dispatcher import LocalDispatcher
from baton.platform.replica.replica import Replica, load_engine, start_replica
from baton.prefill_service.worker import PrefillWorker
from bench.harness.command_line import benchmark_parser
from bench.transfer.recorder import COMPUTED, ROWS, WRITTEN, Bar, Recorder

MODEL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 2048,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "eos_token_id": 1,
    "torch_dtype": "float32",
}
NUM_TOKENS = 1024


async def record(
    *, transport: str = "tcp", num_tokens: int = NUM_TOKENS, chunk: int | None = None
) -> list[Bar]:
    """Record one prompt of `num_tokens`, after another one as a warm-up.

    `chunk`: prompt tokens in one forward pass; None: all.
    """
    changes = {
        "dtype": "float32",
        "load_format": "dummy",
        "transfer.transport": transport,
        "prefill.scheduler.prefill_chunk": chunk,
        "prefill.scheduler.max_batch_tokens": max(num_tokens, 1024),
    }
    config = override(DeploymentConfig(), changes)
    recorder = Recorder()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(MODEL))
        p, d = [await _replica(config, role, folder) for role in (Role.PREFILL, Role.DECODE)]
    try:
        assert isinstance(p.worker, PrefillWorker) and isinstance(d.worker, DecodeWorker)
        address = ReplicaAddress(
            replica_id=p.info.replica_id, epoch=p.info.epoch, address=p.info.address
        )
        recorder.watch_engine(p.worker.core.engine)
        recorder.watch_outbox(p.worker.core.kv.outbox)
        recorder.watch_transport(d.worker.core.kv.transport)
        dispatcher = LocalDispatcher(d.worker, prefill=(address,))
        for first in (2, 3):
            recorder.bars.clear()
            await _ask(dispatcher, range(first, first + num_tokens))
        await dispatcher.close()
    finally:
        await d.stop()
        await p.stop()
    return sorted(recorder.bars, key=lambda bar: bar.start)


async def _replica(config: DeploymentConfig, role: Role, folder: Path) -> Replica:
    engine = await load_engine(config, role, folder)
    return await start_replica(
        config, role, engine, replica_id=ReplicaId(str(role)), host="127.0.0.1"
    )


async def _ask(dispatcher: LocalDispatcher, prompt: range) -> None:
    size = MODEL["vocab_size"]
    generation = Generation(
        request_id=new_request_id(),
        prompt=tuple(token % size for token in prompt),
        sampling=SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True),
    )
    running = await dispatcher.start(generation)
    async for _ in running:
        pass
    await running.stop(2)
    if not running.receipt.kv_bytes:
        raise RuntimeError(f"nothing was handed over: {running.receipt.notes}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    computed_ms: float
    """From the start of the first layer to the end of the last one."""
    beyond_ms: float
    """From the end of the last layer until D had all of the KV."""
    num_bytes: int
    bytes_share: float
    """The share of bytes that were written on D when the last layer was computed."""
    time_share: float
    """The share of the time from the first piece to the last in which P still computed."""


def overlap(bars: Sequence[Bar]) -> Overlap:
    """The overlap of computing and sending. Raises ValueError if either did not happen."""
    computed = [bar for bar in bars if bar.row == COMPUTED]
    written = [bar for bar in bars if bar.row == WRITTEN]
    if not (computed and written):
        raise ValueError("bars of computed layers and of written pieces are needed")
    begins, ends = computed[0].start, max(bar.end for bar in computed)
    travels_from = min(bar.start for bar in bars if bar.row != COMPUTED)
    travels_to = max(bar.end for bar in written)
    num_bytes = sum(bar.num_bytes for bar in written)
    num_early = sum(bar.num_bytes for bar in written if bar.end <= ends)
    return Overlap(
        computed_ms=(ends - begins) * 1e3,
        beyond_ms=max(0.0, travels_to - ends) * 1e3,
        num_bytes=num_bytes,
        bytes_share=num_early / num_bytes,
        time_share=(min(ends, travels_to) - travels_from) / (travels_to - travels_from),
    )


def draw(bars: Sequence[Bar], path: Path | str) -> None:
    """Draw a row for each kind of bar that there is, and a colour for each layer, over
    milliseconds."""
    begins = min(bar.start for bar in bars)
    num_layers = 1 + max(bar.layer for bar in bars)
    colours = pyplot.get_cmap("viridis")
    figure, axes = pyplot.subplots(figsize=(11, 3.6), layout="constrained")
    rows = [row for row in ROWS if any(bar.row == row for bar in bars)]
    for at, row in enumerate(rows):
        lanes = _lanes([bar for bar in bars if bar.row == row])
        height = 0.8 / max(1, len(lanes))
        for number, lane in enumerate(lanes):
            axes.barh(
                [at - 0.4 + (number + 0.5) * height] * len(lane),
                [(bar.end - bar.start) * 1e3 for bar in lane],
                left=[(bar.start - begins) * 1e3 for bar in lane],
                height=0.9 * height,
                color=[colours(bar.layer / max(1, num_layers - 1)) for bar in lane],
            )
    last = max(bar.end for bar in bars if bar.row == COMPUTED)
    axes.axvline((last - begins) * 1e3, color="0.4", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.set_xlabel("ms; dashed: P has computed the last layer")
    shown = sorted({0, num_layers // 2, num_layers - 1})
    axes.legend(
        handles=[
            Patch(color=colours(layer / max(1, num_layers - 1)), label=f"layer {layer}")
            for layer in shown
        ],
        loc="center left",
        bbox_to_anchor=(1, 0.5),
    )
    found = overlap(bars)
    axes.set_title(
        f"{found.num_bytes / 1e6:.0f} MB of KV: {found.bytes_share:.0%} at D when P was done, "
        f"the rest {found.beyond_ms:.0f} ms later"
    )
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _lanes(bars: Sequence[Bar]) -> list[list[Bar]]:
    """The bars in as few lanes as possible without overlap."""
    lanes: list[list[Bar]] = []
    for bar in sorted(bars, key=lambda bar: bar.start):
        for lane in lanes:
            if lane[-1].end <= bar.start:
                lane.append(bar)
                break
        else:
            lanes.append([bar])
    return lanes


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--out", type=Path, required=True, help="where to draw it, a .png or .svg")
    parser.add_argument("--transport", default="tcp")
    parser.add_argument("--tokens", type=int, default=NUM_TOKENS)
    parser.add_argument("--chunk", type=int, help="tokens of the prompt in one forward pass")
    args = parser.parse_args()
    torch.set_num_threads(1)  # one core computes, the other may send
    bars = asyncio.run(record(transport=args.transport, num_tokens=args.tokens, chunk=args.chunk))
    draw(bars, args.out)
    found = overlap(bars)
    print(
        f"{found.num_bytes / 1e6:.1f} MB over {args.transport}; P computed for "
        f"{found.computed_ms:.0f} ms. When its last layer was computed, {found.bytes_share:.0%} of "
        f"the bytes were written on D; the rest took {found.beyond_ms:.0f} ms more. "
        f"{found.time_share:.0%} of the transfer's time lay within the computation."
    )


if __name__ == "__main__":
    main()
