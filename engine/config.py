"""Settings of one engine. Frozen; an invalid value raises ValueError naming it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


def _check_positive(**fields: float | None) -> None:
    for name, value in fields.items():
        if value is not None and not value > 0:  # not `<= 0`: NaN is neither
            raise ValueError(f"{name} must be greater than 0, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The KV cache of an engine: size, blocks, dtype."""

    block_size: int = 16
    """Tokens per block. One pool's value must divide the other pool's."""
    num_blocks: int | None = None
    """Blocks in the cache. None: as many as fit into `memory_gib`."""
    memory_gib: float | None = None
    """Memory of the cache on each rank. None: 1 GiB on a CPU, `memory_fraction` on a GPU."""
    memory_fraction: float = 0.85
    """Share of the GPU memory that weights, the largest pass and graphs leave, to be used for
    blocks."""
    kv_dtype: Literal["auto", "int8", "fp8", "int4"] = "auto"
    """The dtype of cached KV. `auto`: the model's dtype. int8 and fp8 (e4m3), with a scale per
    token and head, hold nearly twice the tokens of sixteen bits, a little less exactly. int4 (CPUs
    only) holds three times as many, four times with a block_size of 128: full blocks have 4 bits, a
    block that is still being filled has the model's dtype."""
    huge_pages: Literal["auto", "off"] = "auto"
    """On a CPU, huge pages of 2 MB for the cache, from which 8-bit KV is read faster. `auto`: used
    blocks are moved onto them in the background, if the kernel can (Linux 6.1). This takes 2 MB of
    additional memory while a page is copied."""
    prefix_caching: bool = True
    """Let prompts share the blocks of a common prefix."""
    pinned_fraction: float = 0.25
    """Share of the blocks that explicit cache points may pin. Beyond it the oldest pins are
    dropped."""

    def __post_init__(self) -> None:
        _check_positive(
            block_size=self.block_size, num_blocks=self.num_blocks, memory_gib=self.memory_gib
        )
        if not 0 < self.memory_fraction <= 1:
            raise ValueError(f"memory_fraction must be in (0, 1], not {self.memory_fraction}")
        if not 0 <= self.pinned_fraction <= 1:
            raise ValueError(f"pinned_fraction must be in [0, 1], not {self.pinned_fraction}")
        if self.num_blocks is not None and self.memory_gib is not None:
            raise ValueError("num_blocks and memory_gib both size the pool: set one of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of one step."""

    max_batch_tokens: int = 2048
    """The most tokens of one forward pass, all requests together. Decoding requests come first;
    prompts share the rest."""
    max_running: int = 64
    """The most requests of one forward pass; not above `max_batch_tokens`."""
    max_model_len: int | None = None
    """The most tokens of prompt and output together. None: what the model and the cache allow."""
    prefill_chunk: int | None = None
    """The most tokens of one prompt in one forward pass (chunked prefill). None: up to
    `max_batch_tokens`."""
    async_scheduling: Literal["auto", "on", "off"] = "auto"
    """Async scheduling: begin a decode pass before the tokens of the previous one are read, so that
    the device computes while they are sent. `auto`: where decode passes are CUDA graphs."""
    micro_batch_tokens: int = 64
    """The fewest tokens of a micro-batch. With pipeline parallelism a pass is cut into
    micro-batches, so that all stages compute at once; each micro-batch reads all weights again."""

    def __post_init__(self) -> None:
        _check_positive(
            max_batch_tokens=self.max_batch_tokens,
            max_running=self.max_running,
            max_model_len=self.max_model_len,
            prefill_chunk=self.prefill_chunk,
            micro_batch_tokens=self.micro_batch_tokens,
        )

    @property
    def max_chunk(self) -> int:
        """The most tokens of one prompt in one pass."""
        return min(self.prefill_chunk or self.max_batch_tokens, self.max_batch_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    """Speculative decoding: drafted tokens are verified in one pass. Changes no token and no
    logprob."""

    method: Literal[
        "off", "suffix", "ngram", "lookahead", "draft", "mtp", "eagle", "p-eagle", "medusa"
    ] = "off"
    """How tokens are drafted. `suffix`: the tokens that followed the same tokens earlier in the
    request, or in recent outputs of the same tenant and salt. `ngram`: in the request only.
    `lookahead`: in the request, and in the model's own tokens after wrong drafts. `draft`: a
    smaller model with the same tokenizer. `mtp`: the model's own MTP head. `eagle`, `p-eagle` (all
    tokens in one pass), `medusa`: heads trained for the model."""
    model: str = ""
    """The draft model or the heads, named like `model`. Empty for the demo: those that come with
    it."""
    memory_gib: float | None = None
    """GiB of KV cache for a draft model or head. None: 2,048 tokens for each of `max_running`
    requests, but 0.5 GiB at most. Requests without room there get no drafts."""
    max_tokens: int = 8
    """The most draft tokens of a request in one step."""
    adaptive: bool = True
    """Adapt the number of draft tokens to measured step times and acceptance, and pause where
    drafting does not pay. Off: always `max_tokens`."""
    features: Literal["auto", "on", "off"] = "off"
    """Keep the hidden states that heads (`mtp`, `eagle`, `p-eagle`) read in the KV blocks, and hand
    them over with the KV, so that a decode replica can draft after prompts that a prefill replica
    computed. Keeping them takes time in every pass, even while drafting is paused: measure before
    turning it on. `auto`: with prefill replicas, if blocks grow by a quarter at most and
    transferring them is cheaper than recomputing. Not available with several ranks per replica. KV
    tiers written with them are not found without them, and vice versa."""
    acceptance: Literal["draws", "published"] = "draws"
    """Which drafts are accepted. `draws`: those equal to the token that the model samples, so that
    every token is the same as without drafts. `published`: the rule min(1, p/q) with residual
    sampling; tokens have the same distribution, but are not the same."""

    @property
    def looks_up(self) -> bool:
        """Whether the method only looks up text, without a model or head."""
        return self.method in ("suffix", "ngram", "lookahead")

    @property
    def wants_features(self) -> bool:
        return self.method in ("mtp", "eagle", "p-eagle") and self.features != "off"

    def __post_init__(self) -> None:
        _check_positive(max_tokens=self.max_tokens, memory_gib=self.memory_gib)
        if self.model and self.method in ("off", "suffix", "ngram", "lookahead", "mtp"):
            raise ValueError(
                f"speculation.model (--draft-model) {self.model} has no effect with method "
                f"{self.method}; set speculation.method to draft (--speculate draft), or leave it "
                "out"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    keeps_features_for: SpeculationConfig | None = None
    """Speculation settings of the heads, here or on other replicas, for which features are kept
    with the KV; None: none are kept."""
    kv_shares: Mapping[str, float] = field(default_factory=dict)
    """Share of the blocks that each tenant may hold, and that is reserved for its cache."""
    buffer_bytes: int = 0
    """GPU memory in bytes that this process uses besides its engine, to receive KV."""
    rebalance_passes: int = 0
    """Forward passes after which experts are moved to balance the ranks' loads. 0: never."""
