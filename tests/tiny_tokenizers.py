"""Tokenizers of a few hundred tokens, trained on the spot, of the two kinds that models have."""

from __future__ import annotations

import json
from functools import cache

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

BOS, EOS, CALL = "<s>", "</s>", "<|call|>"
CORPUS = [
    'the quick brown fox {"name": "jumps", "over": [1, 23, 456], "lazy": true, "dog": null} ' * 3,
    "Hello world, 2024-12-31, é and 漢字, a+b = -1.5e10" * 3,
]


@cache
def byte_level() -> str:
    """As GPT-2 and Llama 3 have it: letters that stand for bytes. The text of a tokenizer.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return _trained(tokenizer, [BOS, EOS, CALL], alphabet).to_str()


@cache
def byte_fallback() -> str:
    """As Llama 2 has it: a mark for the space, and a token of each byte for unknown letters."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    specials = ["<unk>", BOS, EOS, CALL]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    alphabet = [chr(code) for code in range(33, 127)]
    trained = json.loads(_trained(tokenizer, [*specials, *bytes_], alphabet).to_str())
    trained["added_tokens"] = [
        token for token in trained["added_tokens"] if token["content"] in specials
    ]
    return json.dumps(trained)


def token_id(tokenizer_json: str, token: str) -> int:
    found: int = json.loads(tokenizer_json)["model"]["vocab"][token]
    return found


def vocab_size(tokenizer_json: str) -> int:
    return Tokenizer.from_str(tokenizer_json).get_vocab_size()


def _trained(tokenizer: Tokenizer, special: list[str], alphabet: list[str]) -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer
