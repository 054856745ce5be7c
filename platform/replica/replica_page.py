"""The metrics page of a replica.

Most come from components' `metrics()`: `steps_total` becomes `baton_replica_steps_total`.
`metric_help.py` has the help texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from baton.core.metrics import Family, Sample, exposition, gauge
from baton.core.replicas import Capacity
from baton.platform.machine.datasheet import datasheet
from baton.platform.observe.config import MetricsConfig
from baton.platform.replica.metric_help import HELP
from baton.platform.replica.replica import Replica
from baton.proto import replica_pb2 as pb

PREFIX = "baton_replica_"
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peak rates of a replica's device, if known."""

    flops_s: float | None = None
    bytes_s: float | None = None


def peaks_of(config: MetricsConfig, device: str) -> Peaks:
    """Peak rates as configured, or by the data sheet."""
    sheet = datasheet(device)
    tflop_s = config.peak_tflop_s or sheet.bf16_tflop_s
    gb_s = config.peak_gb_s or sheet.read_gb_s
    return Peaks(tflop_s and tflop_s * 1e12, gb_s and gb_s * 1e9)


class ReplicaPage:
    def __init__(self, replica: Replica, config: MetricsConfig) -> None:
        self._replica = replica
        self._peaks = peaks_of(config, replica.engine_facts.device)
        self._has_vllm_names = config.vllm_names
        self._labels = {
            "model": replica.engine_facts.model,
            "role": replica.registered.role.value,
            "replica": replica.registered.replica_id,
        }

    def text(self) -> str:
        """The page, made without a call to the engine's thread."""
        worker, capacity = self._replica.worker, self._replica.worker.capacity()
        numbers = self._replica.metrics()
        families = (
            *_capacity_families(capacity),
            *worker.core.families(),
            *families_of(numbers),
            *_peak_families(self._peaks),
            _info(self._replica.engine_facts),
        )
        page = exposition(families, self._labels)
        if self._has_vllm_names:
            labels = {"model_name": self._labels["model"], "engine": self._labels["replica"]}
            page += exposition(_vllm_families(capacity, numbers), labels)
        return page


def families_of(numbers: Mapping[str, float]) -> list[Family]:
    """Metric families by name; names may include labels in Prometheus' notation."""
    samples: dict[str, list[Sample]] = {}
    for key, value in numbers.items():
        name, _, labels = key.partition("{")
        samples.setdefault(name, []).append(Sample(_read_labels(labels), value))
    return [
        Family(
            PREFIX + name,
            "counter" if name.endswith("_total") else "gauge",
            HELP.get(name, name.replace("_", " ")),
            of_name,
        )
        for name, of_name in samples.items()
    ]


def _read_labels(text: str) -> dict[str, str]:
    return {name: _ESCAPED.sub(_unescaped, value) for name, value in _LABEL.findall(text)}


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def _capacity_families(capacity: Capacity) -> Iterator[Family]:
    yield Family(
        f"{PREFIX}requests",
        "gauge",
        "Requests in the engine, that run and that wait for their turn or their blocks",
        [
            Sample({"state": "running"}, capacity.num_running),
            Sample({"state": "waiting"}, capacity.num_waiting),
        ],
    )
    yield gauge(
        f"{PREFIX}queued_tokens", "Tokens known but not computed yet", capacity.num_queued_tokens
    )
    yield gauge(
        f"{PREFIX}context_tokens",
        "Tokens of context that a step of those who decode reads",
        capacity.num_context_tokens,
    )
    yield gauge(f"{PREFIX}draining", "1 while it lets go what it has", int(capacity.is_draining))


def _peak_families(peaks: Peaks) -> Iterator[Family]:
    if peaks.flops_s is not None:
        help = "What its device can compute: bfloat16, dense, by its data sheet or as configured"
        yield gauge(f"{PREFIX}peak_flops_per_second", help, peaks.flops_s)
    if peaks.bytes_s is not None:
        help = "What its device can read, by its data sheet or as configured"
        yield gauge(f"{PREFIX}peak_bytes_per_second", help, peaks.bytes_s)


def _info(facts: pb.EngineFacts) -> Family:
    labels = {field.name: str(value) for field, value in facts.ListFields()}
    labels.pop("model", None)  # which all have
    return gauge(f"{PREFIX}engine_info", "What the engine is, and how it computes", 1, **labels)


def _vllm_families(capacity: Capacity, numbers: Mapping[str, float]) -> Iterator[Family]:
    """The same metrics under the names of vLLM's engine."""
    num_blocks, num_free = capacity.num_blocks, capacity.num_free_blocks
    usage = 1 - num_free / num_blocks if num_blocks else 0.0
    help = "As Baton's series of the same meaning"
    yield gauge("vllm:num_requests_running", help, capacity.num_running)
    yield gauge("vllm:num_requests_waiting", help, capacity.num_waiting)
    yield gauge("vllm:kv_cache_usage_perc", help, usage)
    yield gauge("vllm:gpu_cache_usage_perc", help, usage)
    for name, value in (
        ("vllm:prefix_cache_hits_total", numbers["tokens_cached_total"]),
        ("vllm:prefix_cache_queries_total", numbers["tokens_looked_up_total"]),
        ("vllm:num_preemptions_total", numbers["preemptions_total"]),
    ):
        yield Family(name, "counter", help, [Sample({}, value)])
