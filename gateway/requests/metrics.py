"""A gateway's Prometheus metrics of its requests.

Tenants and adapters are those of the configuration, which bounds the number of series. Existing
dashboards and autoscalers can have the same metrics under vLLM's names (`vllm_families`).
"""

from __future__ import annotations

from collections.abc import Iterator

from baton.core.messages import Receipt
from baton.core.metrics import Counter, Family, Histogram, gauge, renamed
from baton.gateway.requests.generations.generation import Generation

TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
TOTAL_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
WAIT_BUCKETS_S = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

PREFIX = "baton_gateway_"
WHOSE = ("tenant", "adapter")
"""Labels; either is empty for requests without it."""


class GatewayMetrics:
    """One instance per gateway, so that a process can have several."""

    def __init__(self) -> None:
        self.num_open = 0
        self.requests = _counter(
            "requests_total", "Generations that ended, by outcome", ("outcome", *WHOSE)
        )
        self.calls = _counter(
            "calls_total",
            "Answers begun over HTTP and gRPC, by path or method and by status",
            ("method", "status"),
        )
        self.refused_connections = _counter(
            "refused_connections_total",
            "Connections by HTTP that were refused or cut off, and calls by gRPC, by reason",
            ("reason",),
        )
        self.ignored_fields = _counter(
            "ignored_fields_total",
            "Fields of requests' bodies, and headers for an objective, without effect, by name",
            ("field",),
        )
        self.batches = _counter(
            "batches_total", "Batches that ended here, by how they ended", ("status",)
        )
        self.batch_lines = _counter(
            "batch_lines_total",
            "Lines of batches: answered, failed, or given up for others and run again",
            ("outcome",),
        )
        self.prompt_tokens = _counter("prompt_tokens_total", "Tokens of prompts", WHOSE)
        self.cached_tokens = _counter(
            "cached_tokens_total", "Prompt tokens found in a cache", WHOSE
        )
        self.cache_write_tokens = _counter(
            "cache_write_tokens_total",
            "Prompt tokens before a cache point that were not in a cache until then",
            WHOSE,
        )
        self.output_tokens = _counter("output_tokens_total", "Tokens given to clients", WHOSE)
        self.attempts = _counter(
            "attempts_total", "Attempts of generations that ended: one each if nothing was lost"
        )
        self.admission_s = _histogram(
            "admission_wait_seconds", "From a request's acceptance to its place", WAIT_BUCKETS_S
        )
        self.first_token_s = _histogram(
            "time_to_first_token_seconds",
            "From a request's acceptance to its first token",
            TTFT_BUCKETS_S,
        )
        self.token_s = _histogram(
            "inter_token_seconds",
            "Between two tokens of one request, those that come together sharing the time",
            TOKEN_BUCKETS_S,
        )
        self.total_s = _histogram(
            "request_seconds", "From a request's acceptance to its last token", TOTAL_BUCKETS_S
        )

    def count_ended(
        self, outcome: str, generation: Generation, receipt: Receipt, num_output: int
    ) -> None:
        whose = generation.tenant, generation.adapter
        self.requests.add(1, outcome, *whose)
        self.attempts.add(receipt.attempts)
        self.prompt_tokens.add(len(generation.prompt), *whose)
        self.cached_tokens.add(receipt.cached_tokens, *whose)
        self.cache_write_tokens.add(receipt.cache_write_tokens, *whose)
        self.output_tokens.add(num_output, *whose)

    def families(self) -> Iterator[Family]:
        yield gauge(f"{PREFIX}open_requests", "Generations under way", self.num_open)
        for one in vars(self).values():
            if isinstance(one, Counter | Histogram):
                yield one.family()

    def vllm_families(self) -> Iterator[Family]:
        """The same metrics under the names of vLLM's API server."""
        ended = self.requests.family()
        yield renamed(self.first_token_s.family(), "vllm:time_to_first_token_seconds")
        yield renamed(self.token_s.family(), "vllm:inter_token_latency_seconds")
        yield renamed(self.token_s.family(), "vllm:time_per_output_token_seconds")
        yield renamed(self.total_s.family(), "vllm:e2e_request_latency_seconds")
        yield renamed(self.admission_s.family(), "vllm:request_queue_time_seconds")
        yield renamed(self.prompt_tokens.family(), "vllm:prompt_tokens_total")
        yield renamed(self.output_tokens.family(), "vllm:generation_tokens_total")
        yield ended._replace(
            name="vllm:request_success_total",
            samples=[one for one in ended.samples if one.labels["outcome"] == "ok"],
        )


def _counter(name: str, help: str, labels: tuple[str, ...] = ()) -> Counter:
    return Counter(PREFIX + name, help, labels)


def _histogram(name: str, help: str, bounds: tuple[float, ...]) -> Histogram:
    return Histogram(PREFIX + name, help, bounds)
