"""Train heads that draft for the demo model: EAGLE (Li et al. 2024) or Medusa (Cai et al. 2024).

    python train_draft.py --method eagle --minutes 7 --out eagle
    python train_draft.py --method medusa --minutes 4 --out medusa

The model itself stays as it is. It first writes for a while (its own outputs are what a head has to
guess), then the head learns what the model says of those texts and of the standard library: all of
its distribution, not only its best token. An EAGLE head is trained on what itself gave, too, as it
will have to continue that (HASS, Zhang et al. 2024; EAGLE-3): step j of a row sees the model's
hidden states up to j tokens ago, and behind them its own.

    tokens        t       t + 1     t + 2        hidden states h of the model
    pair          (h[t], t + 1)                  -> g[t], and head(g[t]) says token t + 2
    next step             (g[t], t + 2)          -> says token t + 3

Checkpoints are laid out as on the Hugging Face hub. B sequences, T tokens, D width, V vocabulary.
"""

import argparse
import json
import logging
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from corpus import read_corpus
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional
from train import encode
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
    repeat_kv,
)

from baton.core.messages import SamplingParams
from baton.engine.assemble import assemble_engine
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.request.request import Request

log = logging.getLogger("train_draft")
HERE = Path(__file__).parent
NUM_STEPS = 2  # of its own that an EAGLE head is trained to go on from
STEP_WEIGHT = 0.8  # of each against the one before
NUM_HEADS = 4  # of Medusa
NUM_WRITING = 64  # requests at a time
WARMUP_STEPS = 20
WEIGHTS = {"eagle": "model.safetensors", "medusa": "medusa_lm_head.safetensors"}
RIDGE = 1e-4
PROMPT_LEN, WINDOW = 32, 128
BATCH = 8
PLACES = (NUM_STEPS, WINDOW - NUM_HEADS - 1)  # that have all before and behind them
NUM_PLACES = 40  # of each window, in a step


class EagleHead(nn.Module):
    """Parameters are called as in checkpoints."""

    def __init__(self, target: LlamaForCausalLM) -> None:
        super().__init__()
        width = target.config.hidden_size
        self.config = LlamaConfig(
            **{
                **target.config.to_dict(),
                "num_hidden_layers": 1,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "intermediate_size": 320,
                "tie_word_embeddings": False,
            }
        )
        self.fc = nn.Linear(2 * width, width)
        layer = LlamaDecoderLayer(self.config, 0)
        layer.input_layernorm = nn.Identity()
        self.layers = nn.ModuleList([layer])
        self.rotary = LlamaRotaryEmbedding(self.config)
        nn.init.zeros_(layer.self_attn.o_proj.weight)
        nn.init.zeros_(layer.mlp.down_proj.weight)

    @torch.no_grad()
    def begin_with(self, hidden: Tensor, embedded: Tensor) -> None:
        """What is the best without attention: h[t + 1] as a linear function of the pair, by least
        squares. hidden [B, T, D], and the embeddings of its tokens."""
        ones = torch.ones(*hidden[:, 1:, :1].shape)
        pairs = torch.cat((embedded[:, 1:], hidden[:, :-1], ones), dim=-1).flatten(0, 1).double()
        gram = pairs.T @ pairs
        gram += RIDGE * len(pairs) * torch.eye(len(gram), dtype=gram.dtype)
        found = torch.linalg.solve(gram, pairs.T @ hidden[:, 1:].flatten(0, 1).double()).T
        self.fc.weight.copy_(found[:, :-1])
        self.fc.bias.copy_(found[:, -1])

    def forward(self, hidden: Tensor, embedded: Tensor) -> Iterator[Tensor]:
        """hidden and embeddings of the tokens behind, [B, T, D] -> g [B, T, D], step by step."""
        keys: list[Tensor] = []
        values: list[Tensor] = []
        positions = torch.arange(hidden.shape[1]).unsqueeze(0)
        cos, sin = self.rotary(hidden, positions)
        layer = self.layers[0]
        for _ in range(1 + NUM_STEPS):
            x = self.fc(torch.cat((embedded, hidden), dim=-1))
            q, k, v = self._projected(x)
            q, k = apply_rotary_pos_emb(q, k, cos, sin)
            keys.append(repeat_kv(k, q.shape[1] // k.shape[1]))
            values.append(repeat_kv(v, q.shape[1] // v.shape[1]))
            x = x + layer.self_attn.o_proj(_attended(q, keys, values))
            g = x + layer.mlp(layer.post_attention_layernorm(x))
            yield g
            hidden = functional.pad(g, (0, 0, 1, 0))[:, :-1]  # of the token before

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, heads, T, H] each"""
        attn, shape = self.layers[0].self_attn, (*x.shape[:2], -1, self.config.head_dim)
        parts = (attn.q_proj(x), attn.k_proj(x), attn.v_proj(x))
        q, k, v = (part.view(shape).transpose(1, 2) for part in parts)
        return q, k, v

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.named_parameters())


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

    def __init__(self, target: LlamaForCausalLM) -> None:
        super().__init__()
        width = target.config.hidden_size
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(NUM_HEADS))
        for block in self.blocks:
            nn.init.zeros_(block.weight)
            nn.init.zeros_(block.bias)

    def forward(self, hidden: Tensor) -> Iterator[Tensor]:
        for block in self.blocks:
            yield hidden + functional.silu(block(hidden))

    def tensors(self) -> dict[str, Tensor]:
        return {
            f"{number}.0.linear.{name}": parameter
            for number, block in enumerate(self.blocks)
            for name, parameter in block.named_parameters()
        }


Guesses = list[tuple[Tensor, Tensor]]  # logits [n, V] of a head and of the model, by depth


def guesses(head: nn.Module, target: LlamaForCausalLM, batch: Tensor, places: Tensor) -> Guesses:
    """Of the tokens behind those at `places`, of each window: to multiply by the whole vocabulary
    is most of the work."""
    with torch.no_grad():
        hidden = target.model(batch).last_hidden_state
        embedded = target.model.embed_tokens(batch[:, 1:])
    found: Guesses = []
    given = head(hidden[:, :-1], embedded) if isinstance(head, EagleHead) else head(hidden)
    for depth, x in enumerate(given, 1):
        behind = places + (1 if isinstance(head, EagleHead) else depth)
        with torch.no_grad():
            said = target.lm_head(hidden[:, behind].flatten(0, 1))
        found.append((target.lm_head(x[:, places].flatten(0, 1)), said))
    return found


def loss_of(found: Guesses) -> Tensor:
    """The cross entropy against the model's own distribution."""
    total = torch.zeros(())
    for depth, (guessed, said) in enumerate(found):
        each = functional.cross_entropy(guessed, said.softmax(-1))
        total = total + STEP_WEIGHT**depth * each
    return total


@torch.no_grad()
def describe(head: nn.Module, target: LlamaForCausalLM, batches: tuple[Tensor, ...]) -> str:
    """By depth: how often the best token is the model's, whatever came of those before."""
    shares = [
        [(guessed.argmax(-1) == said.argmax(-1)).float().mean().item() for guessed, said in found]
        for found in (guesses(head, target, batch, torch.arange(*PLACES)) for batch in batches)
    ]
    means = [sum(column) / len(column) for column in zip(*shares, strict=True)]
    return "the model's best token, by depth: " + " ".join(f"{mean:.0%}" for mean in means)


def written_by(folder: Path, stream: Tensor, minutes: float, seed: int) -> Tensor:
    """What the model makes of prompts from the stream, end to end, [n, WINDOW]."""
    config = EngineConfig(
        cache=CacheConfig(prefix_caching=False), scheduler=SchedulerConfig(max_running=NUM_WRITING)
    )
    engine = assemble_engine(folder, config, dtype="float32")
    generator = torch.Generator().manual_seed(seed)
    texts: list[list[int]] = []
    deadline = time.monotonic() + 60 * minutes
    while time.monotonic() < deadline:
        starts = torch.randint(len(stream) - PROMPT_LEN, (NUM_WRITING,), generator=generator)
        requests = [
            Request(
                str(number),
                stream[start : start + PROMPT_LEN].tolist(),
                sampling=SamplingParams(
                    temperature=0.7 * (number % 2),  # half of them greedily
                    top_p=0.9,
                    seed=start,
                    max_tokens=WINDOW - PROMPT_LEN,
                    ignore_eos=True,
                ),
            )
            for number, start in enumerate(starts.tolist())
        ]
        for request in requests:
            engine.add(request)
        while engine.has_work:
            engine.step()
        texts += [request.tokens for request in requests]
    return torch.tensor(texts)


def train(
    head: nn.Module,
    target: LlamaForCausalLM,
    sources: tuple[Tensor, Tensor],
    args: argparse.Namespace,
) -> None:
    """Half of each batch is what the model wrote, half is from the stream, until time is up."""
    written, stream = sources
    optimizer = torch.optim.AdamW(head.parameters(), betas=(0.9, 0.95), weight_decay=0.01)
    generator = torch.Generator().manual_seed(args.seed)
    started = time.monotonic()
    step = 0
    while (progress := (time.monotonic() - started) / (60 * args.minutes)) < 1:
        for group in optimizer.param_groups:
            warm_up, cosine = (
                min(1, (step + 1) / WARMUP_STEPS),
                0.5 * (1 + math.cos(math.pi * progress)),
            )
            group["lr"] = args.peak_learning_rate * warm_up * (0.02 + 0.98 * cosine)
        rows = torch.randint(len(written), (BATCH // 2,), generator=generator)
        starts = torch.randint(len(stream) - WINDOW, (BATCH // 2,), generator=generator)
        windows = [stream[start : start + WINDOW] for start in starts.tolist()]
        batch = torch.cat((written[rows], torch.stack(windows)))
        places = torch.randint(*PLACES, (NUM_PLACES,), generator=generator)
        loss = loss_of(guesses(head, target, batch, places))
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % 20 == 0:
            log.info("step %d, %.0f %% of the time, loss %.3f", step, 100 * progress, loss.item())


def save(head: EagleHead | MedusaHeads, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    method = "eagle" if isinstance(head, EagleHead) else "medusa"
    tensors = {name: each.detach().bfloat16() for name, each in head.tensors().items()}
    if isinstance(head, EagleHead):
        raw = head.config.to_diff_dict() | {"architectures": ["LlamaForCausalLM"], "bias": True}
        del raw["_name_or_path"]
    else:
        raw = {"medusa_num_heads": NUM_HEADS, "medusa_num_layers": 1}
    save_file(tensors, out / WEIGHTS[method], metadata={"format": "pt"})
    os.chmod(out / WEIGHTS[method], 0o644)
    (out / "config.json").write_text(json.dumps(raw, indent=2, sort_keys=True) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", choices=("eagle", "medusa"), required=True)
    parser.add_argument("--target", type=Path, default=HERE / "checkpoint")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--write-minutes", type=float, default=1.5, help="the model's own texts")
    parser.add_argument("--minutes", type=float, default=6, help="of training")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--peak-learning-rate", type=float, default=3e-3)
    parser.add_argument("--start-from", type=Path, help="heads to go on from")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)

    target = LlamaForCausalLM.from_pretrained(args.target, dtype=torch.float32).eval()
    target.requires_grad_(False)
    tokenizer = Tokenizer.from_file(str(args.target / "tokenizer.json"))
    streams = [
        torch.cat((split.text, split.chat))
        for split in (encode(corpus, tokenizer, 0, args.seed) for corpus in read_corpus(args.seed))
    ]
    written = written_by(args.target, streams[0], args.write_minutes, args.seed)
    held_out = written_by(args.target, streams[1], 0.01, args.seed).split(BATCH)
    head = (EagleHead if args.method == "eagle" else MedusaHeads)(target)
    num_parameters = sum(each.numel() for each in head.parameters())
    log.info("%d parameters, %d texts of the model's own", num_parameters, len(written))
    if args.start_from:
        stored = load_file(args.start_from / WEIGHTS[args.method])
        for name, each in head.tensors().items():
            each.data.copy_(stored[name])
    elif isinstance(head, EagleHead):
        with torch.no_grad():
            texts = torch.cat((written, streams[0][: len(written) * WINDOW].view(-1, WINDOW)))
            hidden = torch.cat([target.model(part).last_hidden_state for part in texts.split(32)])
            head.begin_with(hidden, target.model.embed_tokens(texts))
    log.info("before: %s", describe(head, target, held_out))
    train(head, target, (written, streams[0]), args)
    log.info("after: %s", describe(head, target, held_out))
    save(head, args.out)


if __name__ == "__main__":
    main()
