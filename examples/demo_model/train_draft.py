"""Train heads that draft for the demo model: EAGLE (Li et al. 2024), P-EAGLE (2026) or Medusa (Cai
et al. 2024); see draft_heads.py.

    python train_draft.py --method eagle --minutes 7 --out eagle
    python train_draft.py --method p-eagle --minutes 7 --out p_eagle
    python train_draft.py --method medusa --minutes 4 --out medusa

The model itself stays as it is. It first writes for a while (its own outputs are what a head has to
guess), then the head learns what the model says of those texts and of the standard library: all of
its distribution, not only its best token. An EAGLE head is trained on what itself gave, too, as it
will have to continue that (HASS, Zhang et al. 2024; EAGLE-3): step j of a row sees the model's
hidden states up to j tokens ago, and behind them its own. P-EAGLE sees masks there.

Checkpoints are laid out as on the Hugging Face hub. B sequences, T tokens, D width, V vocabulary.
"""

import argparse
import json
import logging
import math
import os
import time
from pathlib import Path

import torch
from corpus import read_corpus
from draft_heads import (
    MASK_TOKEN,
    NUM_DRAFTED,
    NUM_HEADS,
    NUM_MASKS,
    TAPS,
    EagleHead,
    MedusaHeads,
    ParallelEagleHead,
    Seen,
)
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional
from train import encode
from transformers import LlamaForCausalLM

from baton.core.sampling import SamplingParams
from baton.engine.assemble import assemble_engine
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.request.request import Request

log = logging.getLogger("train_draft")
HERE = Path(__file__).parent
STEP_WEIGHT = 0.8  # of each against the one before
NUM_WRITING = 64  # requests at a time
NUM_FITTED = 512  # texts that a head begins with
WARMUP_STEPS = 20
MODEL = "model.safetensors"
WEIGHTS = {"eagle": MODEL, "p-eagle": MODEL, "medusa": "medusa_lm_head.safetensors"}
PROMPT_LEN, WINDOW = 32, 128
BATCH = 8
PLACES = (NUM_MASKS, WINDOW - NUM_HEADS - 1)  # that have all before and behind them
NUM_PLACES = 40  # of each window, in a step


DraftHead = EagleHead | ParallelEagleHead | MedusaHeads
Guesses = list[tuple[Tensor, Tensor]]  # logits of a head [n, V'] and of the model [n, V], by depth


@torch.no_grad()
def seen_by(target: LlamaForCausalLM, batch: Tensor) -> Seen:
    found = target.model(batch, output_hidden_states=True)
    features = torch.cat([found.hidden_states[tap] for tap in TAPS], dim=-1)
    return Seen(found.last_hidden_state, features, target.model.embed_tokens(batch))


def guesses(head: DraftHead, target: LlamaForCausalLM, batch: Tensor, places: Tensor) -> Guesses:
    """Of the tokens behind those at `places`, of each window: to multiply by the whole vocabulary
    is most of the work."""
    seen = seen_by(target, batch)
    lm_head = target.lm_head if head.ids is None else head.lm_head
    found: Guesses = []
    for depth, x in enumerate(head(seen), 1):
        behind = places + (head.offset or depth)
        with torch.no_grad():
            said = target.lm_head(seen.hidden[:, behind].flatten(0, 1))
        found.append((lm_head(x[:, places].flatten(0, 1)), said))
    return found


def loss_of(head: DraftHead, found: Guesses) -> Tensor:
    """The cross entropy against the model's own distribution."""
    total = torch.zeros(())
    for depth, (guessed, said) in enumerate(found):
        shares = said.softmax(-1)
        drafted = shares if head.ids is None else shares[:, head.ids]
        total = total + STEP_WEIGHT**depth * functional.cross_entropy(guessed, drafted)
    return total


@torch.no_grad()
def describe(head: DraftHead, target: LlamaForCausalLM, batches: tuple[Tensor, ...]) -> str:
    """By depth: how often the best token is the model's, whatever came of those before."""
    shares = [
        [(best(head, guessed) == said.argmax(-1)).float().mean().item() for guessed, said in found]
        for found in (guesses(head, target, batch, torch.arange(*PLACES)) for batch in batches)
    ]
    means = [sum(column) / len(column) for column in zip(*shares, strict=True)]
    return "the model's best token, by depth: " + " ".join(f"{mean:.0%}" for mean in means)


def best(head: DraftHead, guessed: Tensor) -> Tensor:
    """The likeliest tokens [n] of logits [n, V']."""
    found = guessed.argmax(-1)
    return found if head.ids is None else head.ids[found]


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
    head: DraftHead,
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
        loss = loss_of(head, guesses(head, target, batch, places))
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % 20 == 0:
            log.info("step %d, %.0f %% of the time, loss %.3f", step, 100 * progress, loss.item())


def save(head: DraftHead, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    tensors = {name: each.detach().bfloat16() for name, each in head.tensors().items()}
    if isinstance(head, MedusaHeads):
        raw = {"medusa_num_heads": NUM_HEADS, "medusa_num_layers": 1}
    else:
        raw = head.config.to_diff_dict() | {"architectures": ["LlamaForCausalLM"]}
        raw.pop("_name_or_path", None)
    if isinstance(head, EagleHead):
        raw["bias"] = True
    if isinstance(head, ParallelEagleHead):
        raw["ptd_token_id"] = MASK_TOKEN
        raw["draft_vocab_size"] = len(head.ids)
        raw["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": list(TAPS)}
        tensors["d2t"] = head.ids - torch.arange(len(head.ids))
    weights = out / WEIGHTS[head.name]
    save_file(tensors, weights, metadata={"format": "pt"})
    os.chmod(weights, 0o644)
    (out / "config.json").write_text(json.dumps(raw, indent=2, sort_keys=True) + "\n")


def begun(method: str, target: LlamaForCausalLM, texts: Tensor) -> DraftHead:
    """A head before it has learnt anything but what a linear function can say."""
    head: DraftHead
    if method == "p-eagle":
        ids = texts.flatten().bincount().topk(NUM_DRAFTED).indices.sort().values
        head = ParallelEagleHead(target, ids)
    else:
        head = (EagleHead if method == "eagle" else MedusaHeads)(target)
    some = texts[torch.linspace(0, len(texts) - 1, NUM_FITTED).long()]
    parts = [seen_by(target, part) for part in some.split(32)]
    head.begin_with(Seen(*map(torch.cat, zip(*parts, strict=True))))
    return head


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", choices=tuple(WEIGHTS), required=True)
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
    texts = torch.cat((written, streams[0][: len(written) * WINDOW].view(-1, WINDOW)))
    head = begun(args.method, target, texts)
    num_parameters = sum(each.numel() for each in head.parameters())
    log.info("%d parameters, %d texts of the model's own", num_parameters, len(written))
    if args.start_from:
        stored = load_file(args.start_from / WEIGHTS[args.method])
        for name, each in head.tensors().items():
            each.data.copy_(stored[name])
    log.info("before: %s", describe(head, target, held_out))
    train(head, target, (written, streams[0]), args)
    log.info("after: %s", describe(head, target, held_out))
    save(head, args.out)


if __name__ == "__main__":
    main()
