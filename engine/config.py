"""What an operator may set about one engine. Frozen; a wrong value raises ValueError naming it."""

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
    """How much KV an engine keeps, and in which pieces."""

    block_size: int = 16
    """Tokens per block. Of prefill and decode, one must divide the other."""
    num_blocks: int | None = None
    """Blocks in the pool. None: as many as fit into the memory below."""
    memory_gib: float | None = None
    """Memory of the pool, on each rank. None: 1 GiB on a CPU, `memory_fraction` on a GPU."""
    memory_fraction: float = 0.85
    """Share of the GPU memory left by weights, the largest pass and graphs that becomes blocks."""
    kv_dtype: Literal["auto", "int8", "fp8", "int4"] = "auto"
    """The dtype of the KV kept. `auto`: as the model computes. Eight bits hold nearly twice the
    tokens of sixteen, read a little less exactly; fp8 is e4m3, and both have a scale a token and
    head. int4 (CPUs) holds three times as many, four with a block_size of 128: full blocks have 4
    bits, what follows them is as wide as the model computes."""
    huge_pages: Literal["auto", "off"] = "auto"
    """On a CPU, pages of 2 MB for the pool: KV in eight bits is read faster there. `auto`: what is
    in use is moved onto them beside the steps, where the kernel can (Linux 6.1). It takes no more
    memory, but for 2 MB while they are copied."""
    prefix_caching: bool = True
    """Let prompts that begin alike share the blocks they have in common."""
    pinned_fraction: float = 0.25
    """Share of the blocks that explicit cache points may keep. Over it the oldest give way."""

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
    """How much runs in one step."""

    max_batch_tokens: int = 2048
    """Tokens of one forward pass, all requests together. Who decodes gets its token first; prompts
    share the rest."""
    max_running: int = 64
    """Requests of one forward pass; never more than `max_batch_tokens`."""
    max_model_len: int | None = None
    """Tokens of prompt and output together. None: what the model and the pool allow."""
    prefill_chunk: int | None = None
    """Tokens of one request in one forward pass, at most. None: up to `max_batch_tokens`."""
    step_ahead: Literal["auto", "on", "off"] = "auto"
    """Begin a decode pass before the tokens of the one before are read, so that the device computes
    while they are given out. `auto`: where decode passes are CUDA graphs."""
    micro_batch_tokens: int = 64
    """Least tokens of a micro-batch: with pipeline parallelism a pass goes through the stages in
    micro-batches, so that all compute at once, and each of them reads all weights anew."""

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
        """Tokens of one prompt in one pass, at most."""
        return min(self.prefill_chunk or self.max_batch_tokens, self.max_batch_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    """Guessing tokens ahead, and verifying many in one pass. Changes no token and no logprob."""

    method: Literal[
        "off", "suffix", "ngram", "lookahead", "draft", "mtp", "eagle", "p-eagle", "medusa"
    ] = "off"
    """How tokens are drafted. `suffix`: what stood behind the same tokens in the request, and in
    outputs that ended lately (of the same tenant and salt). `ngram`: in the request alone.
    `lookahead`: there, and what the model itself drew behind guesses that were wrong. `draft`: a
    smaller model of the same tokenizer. `mtp`: the head behind the last layer of the model itself.
    `eagle`, `p-eagle`, which guesses all of them in one pass, `medusa`: heads that were trained for
    it."""
    model: str = ""
    """The smaller model of the method `draft`, or the heads of the others, named as models are.
    Empty for the demo: what comes with it."""
    memory_gib: float | None = None
    """GiB of KV cache for a draft model or head. None: room for 2,048 tokens of each request that
    may run, but 0.5 GiB at most. Requests without room there are not drafted for."""
    max_tokens: int = 8
    """Tokens guessed of a request in one step, at most."""
    adaptive: bool = True
    """Guess as much as pays, by what steps take and by what comes of guesses, and not at all for a
    while where it does not. Off: always `max_tokens`."""
    features: Literal["auto", "on", "off"] = "off"
    """What heads (`mtp`, `eagle`, `p-eagle`) read of each token, kept in the blocks of KV and
    handed over with it: a decode replica then drafts with prompts that a prefill replica computed.
    To keep them takes time in every pass, also while drafts rest: measure before turning it on.
    `auto`: where there are prefill replicas, blocks grow by a quarter at most, and to carry them is
    cheaper than to compute them. Nowhere, if replicas of either pool are on several ranks. Tiers
    that were written with them are not found without, nor the other way round."""
    acceptance: Literal["draws", "published"] = "draws"
    """Which drafts are kept. `draws`: those that the model draws itself, so that no token is other
    than without drafts. `published`: the rule min(1, p/q) with residual; tokens are distributed as
    without drafts, but are not the same."""

    @property
    def looks_up(self) -> bool:
        """Whether the method only looks texts up: it needs no model and no head."""
        return self.method in ("suffix", "ngram", "lookahead")

    @property
    def wants_features(self) -> bool:
        return self.method in ("mtp", "eagle", "p-eagle") and self.features != "off"

    def __post_init__(self) -> None:
        _check_positive(max_tokens=self.max_tokens, memory_gib=self.memory_gib)
        if self.model and self.method in ("off", "suffix", "ngram", "lookahead", "mtp"):
            raise ValueError(
                f"speculation.model (--draft-model) {self.model} does nothing with the method "
                f"{self.method}: set speculation.method to draft (--speculate draft), or drop it"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    keeps_features_for: SpeculationConfig | None = None
    """Speculation settings of the heads that draft by features kept with the KV, here or on other
    replicas; None: no features are kept."""
    kv_shares: Mapping[str, float] = field(default_factory=dict)
    """Share of the blocks that each tenant may hold, and that is kept for what it caches."""
    buffer_bytes: int = 0
    """Bytes of a GPU that this process takes beside its engine: KV that comes lands there."""
    rebalance_passes: int = 0
    """Forward passes after which experts are moved so that ranks get like loads. 0: never."""
