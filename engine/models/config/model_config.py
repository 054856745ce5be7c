"""`config.json` of a decoder, checked and frozen.

Families read their own keys (`baton.engine.models`) and share common ones. A key that would change
the mathematics and is not implemented is refused, so a model that loads is computed as its authors
intended.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from baton.core.errors import InvalidConfig
from baton.core.kv_layout import WIDE, SideCache
from baton.engine.layers.attention import AttentionKind, HeadShape
from baton.engine.layers.compressed_attention import CompressedConfig, Compression
from baton.engine.layers.hyper_connections import HyperConfig
from baton.engine.layers.indexer import IndexConfig
from baton.engine.layers.mla import LatentConfig
from baton.engine.layers.rope import Rope
from baton.engine.layers.rope_scaling import DynamicScaling, YarnScaling
from baton.engine.models.config.description import (
    CLASSIFIER_FROM_TOKEN,
    architecture_of,
    unsupported,
    wrong,
)
from baton.engine.models.config.keys import ConfigKeys
from baton.engine.models.config.moe import MoeConfig
from baton.kernels.paging.window import Streaming

MUST_BE: Mapping[str, tuple[object, ...]] = {
    "is_encoder_decoder": (False,),
}
"""Keys of any family that change the mathematics, and the values implemented. Absent is fine."""

FULL, SLIDING = "full_attention", "sliding_attention"
"""Values of `layer_types`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """Settings that may differ between layers."""

    rope: Rope | None
    """Rotary settings; None: learned positions, added to the embedding."""
    attention: AttentionKind = field(default_factory=AttentionKind)
    moe: MoeConfig | None = None
    """None: one feed-forward, of the model's `intermediate_size`."""
    compression: Compression | None = None
    """Compression of the context before the window."""
    has_index: bool = False
    """Whether a sparse layer has an indexer; without one it uses the choice of the last layer with
    one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    heads: HeadShape
    layers: tuple[LayerConfig, ...]
    activation: str
    norm_eps: float
    max_position_embeddings: int
    max_model_len: int
    """Tokens of prompt and output together that are served; some rotary positions depend on it."""
    tie_word_embeddings: bool
    dtype: str | None
    """The dtype of the weights, as the authors declare it; None if they do not."""
    eos_token_ids: tuple[int, ...]
    has_qkv_bias: bool = False
    has_out_bias: bool = False
    """Whether attention's output has a bias."""
    has_ffn_bias: bool = False
    has_head_norm: bool = False
    """Whether heads have norms, where a family's checkpoints differ in it."""
    has_ffn_norm: bool = True
    """Whether the feed-forward has a norm of its own; otherwise it has the same input as
    attention."""
    logit_softcap: float | None = None
    num_labels: int | None = None
    """Set for a classifier: the head gives a logit per label, and no tokens are generated."""
    latent: LatentConfig | None = None
    """Latent attention, with one cached latent per token; `heads` then attend to it."""
    compressed: CompressedConfig | None = None
    """Keys are values, and layers may have a `compression`."""
    index: IndexConfig | None = None
    """Sparse attention: the index that chooses the tokens of a query."""
    hyper: HyperConfig | None = None
    """The residual is several streams."""

    @property
    def num_vectors(self) -> int:
        """The vectors of a token and KV head, as `KvLayout` counts them."""
        return 2 if self.latent is None and self.compressed is None else 1

    def side_caches(self, dtype: str) -> tuple[SideCache, ...]:
        """The layers' side caches, for compute dtype `dtype`."""
        layers: dict[tuple[str, int], list[int]] = {}
        for number, layer in enumerate(self.layers):
            for side_cache in () if layer.compression is None else layer.compression.side_caches:
                layers.setdefault(side_cache, []).append(number)
            if self.index is not None and layer.has_index:
                layers.setdefault(self.index.side_cache, []).append(number)
        return tuple(
            SideCache(name=name, layers=tuple(numbers), width=width, dtype=dtype)
            for (name, width), numbers in layers.items()
        )

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def ropes(self) -> list[Rope]:
        """The distinct ones of its layers."""
        return list(dict.fromkeys(layer.rope for layer in self.layers if layer.rope is not None))

    @property
    def max_context(self) -> int:
        """The longest request that positions allow; some scalings extend the trained context."""
        reaches = [self.max_position_embeddings]
        for rope in self.ropes:
            if isinstance(rope.scaling, DynamicScaling | YarnScaling):
                reaches.append(int(rope.scaling.factor * rope.scaling.original_len))
        return max(reaches)

    def serving(self, max_model_len: int) -> ModelConfig:
        """This configuration for requests of up to `max_model_len` tokens, as far as the model
        allows."""
        return replace(self, max_model_len=min(max_model_len, self.max_context))

    def streaming(self, window: Streaming) -> ModelConfig:
        """This configuration with `window` in the layers of full attention.

        Raises InvalidConfig for attention of a kind that has no such window.
        """
        if self.num_vectors == 1 or self.index is not None:
            raise InvalidConfig(
                f"attention_window: {self.architecture} has latent or sparse attention, which "
                "takes no window; leave it out"
            )
        kinds = [layer.attention for layer in self.layers]
        narrowed = [replace(kind, window=window) if kind.window is None else kind for kind in kinds]
        layers = zip(self.layers, narrowed, strict=True)
        return replace(self, layers=tuple(replace(layer, attention=kind) for layer, kind in layers))


def parse_decoder(
    keys: ConfigKeys,
    heads: HeadShape,
    layers: Sequence[LayerConfig],
    activations: Collection[str],
) -> ModelConfig:
    """The customary keys. Raises CheckpointError on values missing, odd or unsupported."""
    max_position_embeddings = keys.count("max_position_embeddings", 2048)
    return ModelConfig(
        architecture=architecture_of(
            {key: keys.value(key) for key in ("architectures", CLASSIFIER_FROM_TOKEN)}
        ),
        vocab_size=keys.count("vocab_size"),
        hidden_size=keys.count("hidden_size"),
        intermediate_size=keys.count("intermediate_size"),
        heads=heads,
        layers=tuple(layers),
        activation=keys.choice("hidden_act", activations),
        norm_eps=keys.positive("rms_norm_eps", 1e-6),
        max_position_embeddings=max_position_embeddings,
        max_model_len=max_position_embeddings,
        tie_word_embeddings=keys.flag("tie_word_embeddings", False),
        dtype=_dtype(keys),
        eos_token_ids=parse_eos(keys.value("eos_token_id")),
    )


def parse_heads(keys: ConfigKeys) -> HeadShape:
    hidden_size, num_heads = keys.count("hidden_size"), keys.count("num_attention_heads")
    heads = HeadShape(
        num_heads=num_heads,
        num_kv_heads=keys.count("num_key_value_heads", num_heads),
        head_dim=keys.count("head_dim", hidden_size // num_heads),
    )
    if heads.num_heads % heads.num_kv_heads:
        raise wrong(
            f"`{keys.name('num_attention_heads')}` {heads.num_heads} is no multiple "
            f"of `{keys.name('num_key_value_heads')}` {heads.num_kv_heads}"
        )
    return heads


def parse_windows(
    keys: ConfigKeys, window: int | None, is_sliding: Sequence[bool]
) -> list[int | None]:
    """The window of each layer. `layer_types`, if there, comes before `is_sliding`."""
    if keys.value("layer_types") is not None:
        is_sliding = [kind == SLIDING for kind in _layer_types(keys, len(is_sliding))]
    if any(is_sliding) and window is None:
        raise wrong(f"`layer_types` has {SLIDING!r} but there is no `sliding_window`")
    return [window if sliding else None for sliding in is_sliding]


def parse_uniform_windows(keys: ConfigKeys, window: int | None) -> list[int | None]:
    """`window` for every layer; `layer_types`, if there, must not say otherwise."""
    num_layers = keys.count("num_hidden_layers")
    expected = FULL if window is None else SLIDING
    if keys.value("layer_types") is not None and set(_layer_types(keys, num_layers)) != {expected}:
        raise keys.complaint("layer_types", f"must be {expected!r} alone")
    return [window] * num_layers


def _layer_types(keys: ConfigKeys, num_layers: int) -> list[str]:
    types = keys.value("layer_types")
    if (
        not isinstance(types, list)
        or len(types) != num_layers
        or any(kind not in (FULL, SLIDING) for kind in types)
    ):
        raise keys.complaint("layer_types", f"must be {num_layers} times {FULL!r} or {SLIDING!r}")
    return types


def parse_eos(value: object) -> tuple[int, ...]:
    """Token ids from `eos_token_id`, which is null, a number or a list."""
    match value:
        case None:
            return ()
        case int():
            return (value,)
        case list() if all(isinstance(token, int) for token in value):
            return tuple(value)
        case _:
            raise wrong(f"`eos_token_id` must be a token id or a list, not {value!r}")


def _dtype(keys: ConfigKeys) -> str | None:
    value = keys.value("dtype") or keys.value("torch_dtype")  # the old and new names of one key
    if value is None or (isinstance(value, str) and value in WIDE):
        return value
    raise unsupported(f"`dtype` is {value!r}; supported are {', '.join(WIDE)}")
