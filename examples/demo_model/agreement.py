"""How well the draft guesses the demo model: what speculative decoding could gain from it.

    python examples/demo_model/agreement.py

On held-out prompts, each continued with tokens drawn from the demo model: how often the most
probable token of both is the same, and how far their distributions overlap, which is the share of
the draft's guesses that speculative sampling accepts (Leviathan et al. 2023).
"""

from pathlib import Path

import torch
from corpus import read_corpus
from tokenizers import Tokenizer
from train import encode
from transformers import LlamaForCausalLM

HERE = Path(__file__).parent
NUM_PROMPTS, PROMPT_LEN, OUTPUT_LEN = 20, 64, 64
TEMPERATURE = 0.7


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    demo, draft = (
        LlamaForCausalLM.from_pretrained(HERE / name).float().eval()
        for name in ("checkpoint", "draft")
    )
    tokenizer = Tokenizer.from_file(str(HERE / "checkpoint" / "tokenizer.json"))
    held_out = encode(read_corpus(0)[1], tokenizer, 0, 0).text
    same, overlap = [], []
    for start in range(0, 5000 * NUM_PROMPTS, 5000):
        prompt = held_out[start : start + PROMPT_LEN][None]
        tokens = demo.generate(
            prompt,
            max_new_tokens=OUTPUT_LEN,
            do_sample=True,
            temperature=TEMPERATURE,
            top_p=1.0,
            pad_token_id=2,
            eos_token_id=[],
        )
        wanted, guessed = (m(tokens).logits[0, PROMPT_LEN - 1 : -1] for m in (demo, draft))
        same.append((wanted.argmax(-1) == guessed.argmax(-1)).float())
        both = [(logits / TEMPERATURE).softmax(-1) for logits in (wanted, guessed)]
        overlap.append(torch.minimum(*both).sum(-1))
    print(f"same most probable token: {torch.cat(same).mean():.1%}")
    print(f"overlap at temperature {TEMPERATURE}: {torch.cat(overlap).mean():.1%}")


if __name__ == "__main__":
    main()
