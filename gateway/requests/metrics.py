"""What the gateway counts about its requests, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from baton.core.messages import Receipt

TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
TOTAL_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
GAP_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class GatewayMetrics:
    """One registry for each gateway, so that several can live in one process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "baton_gateway_requests",
            "Generations that ended, by outcome",
            ("outcome",),
            registry=registry,
        )
        self.calls = Counter(
            "baton_gateway_calls",
            "Answers begun over HTTP and gRPC, by path or method and by status",
            ("method", "status"),
            registry=registry,
        )
        self.open_requests = Gauge(
            "baton_gateway_open_requests", "Generations under way", registry=registry
        )
        self.prompt_tokens = Counter(
            "baton_gateway_prompt_tokens", "Tokens of prompts", registry=registry
        )
        self.cached_tokens = Counter(
            "baton_gateway_cached_tokens", "Prompt tokens found in a cache", registry=registry
        )
        self.cache_write_tokens = Counter(
            "baton_gateway_cache_write_tokens",
            "Prompt tokens before a cache point that were not in a cache until then",
            registry=registry,
        )
        self.output_tokens = Counter(
            "baton_gateway_output_tokens", "Tokens given to clients", registry=registry
        )
        self.first_token_s = Histogram(
            "baton_gateway_time_to_first_token_seconds",
            "From a request's acceptance to its first token",
            buckets=TTFT_BUCKETS_S,
            registry=registry,
        )
        self.gap_s = Histogram(
            "baton_gateway_update_gap_seconds",
            "Between two updates of one request",
            buckets=GAP_BUCKETS_S,
            registry=registry,
        )
        self.total_s = Histogram(
            "baton_gateway_request_seconds",
            "From a request's acceptance to its last token",
            buckets=TOTAL_BUCKETS_S,
            registry=registry,
        )

    def count_ended(self, outcome: str, receipt: Receipt, num_prompt: int, num_output: int) -> None:
        self.requests.labels(outcome).inc()
        self.prompt_tokens.inc(num_prompt)
        self.cached_tokens.inc(receipt.cached_tokens)
        self.cache_write_tokens.inc(receipt.cache_write_tokens)
        self.output_tokens.inc(num_output)

    def text(self) -> str:
        return generate_latest(self.registry).decode()
