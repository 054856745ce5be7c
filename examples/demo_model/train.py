"""Train the demo checkpoint, a Llama of 4.5 million parameters, on the Python standard library.

    python examples/demo_model/train.py --minutes 40 --out examples/demo_model/checkpoint

and its draft, of 0.9 million, which guesses ahead of it in speculative decoding: it must have the
same tokenizer, so it takes the demo's.

    python examples/demo_model/train.py --size draft --minutes 45 --out examples/demo_model/draft \
        --tokenizer-from examples/demo_model/checkpoint

Nothing is downloaded and no GPU is needed. The run ends when either the minutes or the steps are
used up; the learning rate follows whichever is nearer its end. A usable checkpoint is in --out a
few minutes after the start and is replaced every --save-minutes, so a run that is cut short still
leaves a model.

Shapes: B sequences a batch, T tokens a sequence.
"""

import argparse
import itertools
import logging
import math
import os
import random
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from corpus import Corpus, Message, read_corpus
from tokenizer import BOS, CHAT_TEMPLATE, EOS, PAD, save_tokenizer, train_tokenizer
from tokenizers import Tokenizer
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.utils.chat_template_utils import render_jinja_template

log = logging.getLogger("train")

VOCAB_SIZE = 4096
MAX_POSITION = 2048
BATCH_TOKENS = 4096
SHORT_CONTEXT = 256
LONG_CONTEXT_EVERY = 8  # steps; enough for positions up to MAX_POSITION to be learned
WARMUP_STEPS = 100
CUT_RATE = 1 / 12  # of all white space
HELD_OUT_BATCHES = 12
MAX_SHARD_SIZE = "4MB"


@dataclass(frozen=True, slots=True)
class Split:
    """Token streams: documents one after the other, each from <|begin|> to <|end|>."""

    text: Tensor  # [num_text_tokens]
    chat: Tensor  # [num_chat_tokens]


SHAPES = {
    "demo": {
        "hidden_size": 256,
        "intermediate_size": 640,
        "num_hidden_layers": 5,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    },
    "draft": {
        "hidden_size": 128,
        "intermediate_size": 320,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}


def model_config(size: str, tokenizer: Tokenizer) -> LlamaConfig:
    return LlamaConfig(
        **SHAPES[size],
        vocab_size=VOCAB_SIZE,
        head_dim=32,
        max_position_embeddings=MAX_POSITION,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=tokenizer.token_to_id(BOS),
        eos_token_id=tokenizer.token_to_id(EOS),
        pad_token_id=tokenizer.token_to_id(PAD),
        dtype="float32",
    )


def new_model(size: str, tokenizer: Tokenizer) -> LlamaForCausalLM:
    model = LlamaForCausalLM(model_config(size, tokenizer))
    model.generation_config = GenerationConfig(
        bos_token_id=model.config.bos_token_id,
        eos_token_id=model.config.eos_token_id,
        pad_token_id=model.config.pad_token_id,
        do_sample=True,
        temperature=0.7,
        top_p=0.9,
    )
    return model


def render_chats(chats: list[list[Message]]) -> list[str]:
    conversations = [[{"role": m.role, "content": m.content} for m in chat] for chat in chats]
    rendered, _ = render_jinja_template(
        conversations, chat_template=CHAT_TEMPLATE, bos_token=BOS, eos_token=EOS
    )
    return rendered


def encode(corpus: Corpus, tokenizer: Tokenizer, cut_rate: float, seed: int) -> Split:
    texts = [BOS + text + EOS for text in corpus.texts]
    chats = render_chats(corpus.chats)
    rng = random.Random(seed)
    return Split(*(_stream(documents, tokenizer, cut_rate, rng) for documents in (texts, chats)))


def _stream(
    documents: list[str], tokenizer: Tokenizer, cut_rate: float, rng: random.Random
) -> Tensor:
    shuffled = rng.sample(documents, len(documents))
    parts = [part for document in shuffled for part in _cut(document, cut_rate, rng)]
    encodings = tokenizer.encode_batch(parts, add_special_tokens=False)
    return torch.tensor([token_id for encoding in encodings for token_id in encoding.ids])


def _cut(document: str, cut_rate: float, rng: random.Random) -> list[str]:
    """Parts to be encoded one by one, each ending in white space.

    A prompt may end in a space or a newline, which inside a text is one token with what follows it.
    Cuts show the model such endings too.
    """
    ends = [m.end() for m in re.finditer(r"\s", document) if rng.random() < cut_rate]
    return [document[i:j] for i, j in itertools.pairwise([0, *ends, len(document)])]


def sample_batch(stream: Tensor, context: int, generator: torch.Generator) -> Tensor:
    """Windows at random places of the stream."""
    starts = torch.randint(len(stream) - context, (BATCH_TOKENS // context,), generator=generator)
    return torch.stack([stream[i : i + context] for i in starts.tolist()])  # [B, T]


def learning_rate(peak: float, step: int, progress: float) -> float:
    """Linear warm-up to the peak, then a cosine down to a fiftieth of it."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    return peak * min(1.0, (step + 1) / WARMUP_STEPS) * (0.02 + 0.98 * cosine)


@torch.no_grad()
def held_out_loss(model: LlamaForCausalLM, stream: Tensor) -> float:
    """Mean cross entropy in nats a token, over the same windows every time."""
    num_windows = min(len(stream) // 512, HELD_OUT_BATCHES * BATCH_TOKENS // 512)
    stride = len(stream) // num_windows
    windows = [stream[i * stride : i * stride + 512] for i in range(num_windows)]
    losses = [model(input_ids=w[None], labels=w[None]).loss.item() for w in windows]
    return sum(losses) / len(losses)


def train_steps(
    model: LlamaForCausalLM, split: Split, args: argparse.Namespace
) -> Iterator[tuple[int, float]]:
    """Yield (step, loss) after every optimizer step, until the minutes or the steps are used up."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    gains = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": gains, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)
    generator = torch.Generator().manual_seed(args.seed)
    stream = torch.cat([split.text, split.chat])  # each comes up in proportion to its length
    started = time.monotonic()
    for step in range(args.steps):
        progress = max(step / args.steps, (time.monotonic() - started) / (60 * args.minutes))
        if progress >= 1:
            return
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(args.peak_learning_rate, step, progress)
        is_long = step % LONG_CONTEXT_EVERY == LONG_CONTEXT_EVERY - 1
        batch = sample_batch(stream, MAX_POSITION if is_long else SHORT_CONTEXT, generator)
        with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
            loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield step + 1, loss.item()


def save_checkpoint(model: LlamaForCausalLM, tokenizer: Tokenizer, out: Path) -> None:
    """Write beside --out, then rename file by file: a reader never meets half a file.

    Weights are stored as bfloat16 to halve the files; config.json says float32, the type they are
    served in.
    """
    out.mkdir(parents=True, exist_ok=True)
    weights = {name: weight.bfloat16() for name, weight in model.state_dict().items()}
    del weights["lm_head.weight"]  # tied to the embedding
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        model.save_pretrained(folder, state_dict=weights, max_shard_size=MAX_SHARD_SIZE)
        save_tokenizer(tokenizer, Path(folder), MAX_POSITION)
        for path in Path(folder).iterdir():
            os.chmod(path, 0o644)
            os.replace(path, out / path.name)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SHAPES, default="demo")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "checkpoint")
    parser.add_argument("--minutes", type=float, default=40)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--save-minutes", type=float, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--peak-learning-rate", type=float, default=3e-3)
    parser.add_argument("--start-from", type=Path, help="a checkpoint to go on from")
    parser.add_argument("--tokenizer-from", type=Path, help="a checkpoint whose tokenizer to take")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--bf16", action="store_true", help="compute in bfloat16; faster where the CPU supports it"
    )
    return parser.parse_args()


def describe_losses(model: LlamaForCausalLM, held_out: Split) -> str:
    source, chat = (held_out_loss(model, stream) for stream in (held_out.text, held_out.chat))
    return f"held-out loss {source:.3f} on source, {chat:.3f} on chat"


def main() -> None:
    args = parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)  # second moments of rare tokens would otherwise slow AdamW down
    torch.manual_seed(args.seed)

    corpora = read_corpus(args.seed)
    if source := args.tokenizer_from or args.start_from:
        tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    else:
        texts = [*corpora[0].texts, *render_chats(corpora[0].chats)]
        tokenizer = train_tokenizer(texts, VOCAB_SIZE)
    training = encode(corpora[0], tokenizer, CUT_RATE, args.seed)
    held_out = encode(corpora[1], tokenizer, 0, args.seed)
    model = new_model(args.size, tokenizer)
    if args.start_from:
        model.load_state_dict(LlamaForCausalLM.from_pretrained(args.start_from).state_dict())
    log.info("%d parameters", model.num_parameters())
    log.info("training tokens: %d of source, %d of chat", len(training.text), len(training.chat))
    log.info("held-out tokens: %d of source, %d of chat", len(held_out.text), len(held_out.chat))

    started = last_save = time.monotonic()
    for step, loss in train_steps(model, training, args):
        now = time.monotonic()
        if step % 50 == 0:
            speed = step * BATCH_TOKENS / (now - started)  # tokens per second, saving included
            log.info("step %d: %.0f s, %.0f tokens/s, loss %.3f", step, now - started, speed, loss)
        if now - last_save > 60 * args.save_minutes:
            save_checkpoint(model, tokenizer, args.out)
            log.info("step %d: saved, %s", step, describe_losses(model, held_out))
            last_save = now
    save_checkpoint(model, tokenizer, args.out)
    saved = LlamaForCausalLM.from_pretrained(args.out)  # as stored, rounded to bfloat16
    log.info("finished after %d steps, %s", step, describe_losses(saved, held_out))


if __name__ == "__main__":
    main()
