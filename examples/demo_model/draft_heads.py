"""The heads that draft for the demo model, as they are trained: parameters are called as in
checkpoints.

    tokens        t       t + 1     t + 2        hidden states h of the model
    EAGLE         (h[t], t + 1)                  -> g[t], and head(g[t]) says token t + 2
      next step             (g[t], t + 2)        -> says token t + 3
    P-EAGLE       (f[t], t + 1)  mask  mask      -> tokens t + 2, t + 3, t + 4 in one pass
    Medusa        h[t]                           -> token t + 2, t + 3, ... by a head each

B sequences, T tokens, D width, F width of the features f, V vocabulary, V' of the drafted tokens.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
    repeat_kv,
)

NUM_STEPS = 2  # of its own that an EAGLE head is trained to go on from
NUM_MASKS = 4  # behind the last pair of P-EAGLE
NUM_HEADS = 4  # of Medusa
TAPS = (1, 3, 4)  # layers whose inputs P-EAGLE reads
MASK_TOKEN = 2  # <|pad|>
NUM_DRAFTED = 1536  # V' of P-EAGLE: the others are hardly ever said
RIDGE = 1e-4


class Seen(NamedTuple):
    """What the model makes of a batch."""

    hidden: Tensor  # [B, T, D]
    features: Tensor  # [B, T, F]
    embedded: Tensor  # [B, T, D]


def _config(target: LlamaForCausalLM) -> LlamaConfig:
    return LlamaConfig(
        **{
            **target.config.to_dict(),
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 320,
            "tie_word_embeddings": False,
        }
    )


class EagleHead(nn.Module):
    name = "eagle"
    offset = 1
    ids = None

    def __init__(self, target: LlamaForCausalLM) -> None:
        super().__init__()
        width = target.config.hidden_size
        self.config = _config(target)
        self.fc = nn.Linear(2 * width, width)
        layer = LlamaDecoderLayer(self.config, 0)
        layer.input_layernorm = nn.Identity()
        self.layers = nn.ModuleList([layer])
        self.rotary = LlamaRotaryEmbedding(self.config)
        nn.init.zeros_(layer.self_attn.o_proj.weight)
        nn.init.zeros_(layer.mlp.down_proj.weight)

    @torch.no_grad()
    def begin_with(self, seen: Seen) -> None:
        """What is the best without attention: h[t + 1] as a linear function of the pair."""
        ones = torch.ones(*seen.hidden[:, 1:, :1].shape)
        pairs = torch.cat((seen.embedded[:, 1:], seen.hidden[:, :-1], ones), dim=-1)
        found = least_squares(pairs, seen.hidden[:, 1:])
        self.fc.weight.copy_(found[:, :-1])
        self.fc.bias.copy_(found[:, -1])

    def forward(self, seen: Seen) -> Iterator[Tensor]:
        """g [B, T - 1, D], step by step."""
        hidden, embedded = seen.hidden[:, :-1], seen.embedded[:, 1:]
        keys: list[Tensor] = []
        values: list[Tensor] = []
        positions = torch.arange(hidden.shape[1]).unsqueeze(0)
        cos, sin = self.rotary(hidden, positions)
        layer = self.layers[0]
        for _ in range(1 + NUM_STEPS):
            x = self.fc(torch.cat((embedded, hidden), dim=-1))
            q, k, v = projected(layer, self.config.head_dim, x, (cos, sin))
            keys.append(k)
            values.append(v)
            x = x + layer.self_attn.o_proj(_attended(q, keys, values))
            g = x + layer.mlp(layer.post_attention_layernorm(x))
            yield g
            hidden = functional.pad(g, (0, 0, 1, 0))[:, :-1]  # of the token before

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.named_parameters())


class ParallelEagleHead(nn.Module):
    """P-EAGLE in the layout of EAGLE-3. A mask at a place is the same whatever is before it, so its
    key and value are those of all steps."""

    name = "p-eagle"
    offset = 1

    def __init__(self, target: LlamaForCausalLM, ids: Tensor) -> None:
        """`ids` [V'], ascending: the tokens that are drafted."""
        super().__init__()
        width = target.config.hidden_size
        self.config = _config(target)
        self.ids = ids
        self.fc = nn.Linear(len(TAPS) * width, width, bias=False)
        self.midlayer = LlamaDecoderLayer(self.config, 0)
        self.midlayer.hidden_norm = LlamaRMSNorm(width, self.config.rms_norm_eps)
        attn = self.midlayer.self_attn
        for part in (attn.q_proj, attn.k_proj, attn.v_proj):
            wide = torch.empty(len(part.weight), 2 * width)
            part.weight = nn.Parameter(wide.normal_(0, self.config.initializer_range))
        nn.init.zeros_(attn.o_proj.weight)
        nn.init.zeros_(self.midlayer.mlp.down_proj.weight)
        self.norm = LlamaRMSNorm(width, self.config.rms_norm_eps)
        self.norm.weight.data.copy_(target.model.norm.weight)
        self.lm_head = nn.Linear(width, len(ids), bias=False)
        self.lm_head.weight.data.copy_(target.lm_head.weight[ids])
        self.mask_hidden = nn.Parameter(torch.zeros(1, len(TAPS) * width))
        self.rotary = LlamaRotaryEmbedding(self.config)
        self.register_buffer("mask_embedded", target.model.embed_tokens.weight[MASK_TOKEN])

    @torch.no_grad()
    def begin_with(self, seen: Seen) -> None:
        """Features that say by themselves what the next hidden state is, as well as they can."""
        features = seen.features[:, :-1]
        self.fc.weight.copy_(least_squares(features, seen.hidden[:, 1:]))
        self.mask_hidden.copy_(features.mean((0, 1)))

    def forward(self, seen: Seen) -> Iterator[Tensor]:
        """What `lm_head` reads, [B, T - 1, D], of the pair at a place, of a mask there behind the
        pair before, of one behind the pair before that, and so on."""
        layer, known = self.midlayer, self.fc(seen.features[:, :-1])
        rotation = self.rotary(known, torch.arange(known.shape[1]).unsqueeze(0))
        masked = self.fc(self.mask_hidden).expand_as(known)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for step in range(1 + NUM_MASKS):
            if step < 2:
                hidden = masked if step else known
                embedded = self.mask_embedded.expand_as(known) if step else seen.embedded[:, 1:]
                pair = (layer.input_layernorm(embedded), layer.hidden_norm(hidden))
                q, k, v = projected(layer, self.config.head_dim, torch.cat(pair, -1), rotation)
            keys.append(k)
            values.append(v)
            x = hidden + layer.self_attn.o_proj(_attended(q, keys, values))
            yield self.norm(x + layer.mlp(layer.post_attention_layernorm(x)))

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.named_parameters())


def projected(
    layer: LlamaDecoderLayer, head_dim: int, x: Tensor, rotation: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [B, heads, T, H]."""
    attn, shape = layer.self_attn, (*x.shape[:2], -1, head_dim)
    parts = (attn.q_proj(x), attn.k_proj(x), attn.v_proj(x))
    q, k, v = (part.view(shape).transpose(1, 2) for part in parts)
    q, k = apply_rotary_pos_emb(q, k, *rotation)
    times = q.shape[1] // k.shape[1]
    return q, repeat_kv(k, times), repeat_kv(v, times)


def least_squares(inputs: Tensor, wanted: Tensor) -> Tensor:
    """[B, T, N] and [B, T, M] -> [M, N]"""
    rows, results = inputs.flatten(0, 1).double(), wanted.flatten(0, 1).double()
    gram = rows.T @ rows
    gram += RIDGE * len(rows) * torch.eye(len(gram), dtype=gram.dtype)
    return torch.linalg.solve(gram, rows.T @ results).T.float()


def _attended(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """[B, T, heads * H]. The query of step j at place t reads the keys of step 0 up to t - j, and
    of step i the one at t - j + i."""
    last, length = len(keys) - 1, q.shape[2]
    scale = q.shape[-1] ** -0.5
    unseen = torch.ones(length, length, dtype=torch.bool).triu(1 - last)
    scores = (q @ keys[0].transpose(2, 3) * scale).masked_fill(unseen, -torch.inf)
    own_keys = [_shifted(k, last - i) for i, k in enumerate(keys[1:], 1)]
    own_values = [_shifted(v, last - i) for i, v in enumerate(values[1:], 1)]
    own = [(q * k).sum(-1, keepdim=True) * scale for k in own_keys]
    weights = torch.cat((scores, *own), dim=-1).softmax(-1)
    out = weights[..., :length] @ values[0]
    for i, v in enumerate(own_values):
        out = out + weights[..., length + i : length + i + 1] * v
    return out.transpose(1, 2).flatten(2)


def _shifted(x: Tensor, places: int) -> Tensor:
    return functional.pad(x, (0, 0, places, 0))[:, :, : x.shape[2]]


class MedusaHeads(nn.Module):
    """They share the model's own head, so that they stay small."""

    name = "medusa"
    offset = 0
    ids = None

    def __init__(self, target: LlamaForCausalLM) -> None:
        super().__init__()
        width = target.config.hidden_size
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(NUM_HEADS))
        for block in self.blocks:
            nn.init.zeros_(block.weight)
            nn.init.zeros_(block.bias)

    def begin_with(self, seen: Seen) -> None:
        """As the model's own head, which says the token before."""

    def forward(self, seen: Seen) -> Iterator[Tensor]:
        for block in self.blocks:
            yield seen.hidden + functional.silu(block(seen.hidden))

    def tensors(self) -> dict[str, Tensor]:
        return {
            f"{number}.0.linear.{name}": parameter
            for number, block in enumerate(self.blocks)
            for name, parameter in block.named_parameters()
        }
