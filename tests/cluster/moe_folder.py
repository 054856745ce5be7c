"""A tiny mixture of experts that can be served: with the demo model's tokeniser."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.tiny_checkpoints import make_mixtral

from baton.core.sampling import SamplingParams
from baton.engine.assemble import assemble_engine
from baton.engine.config import EngineConfig
from baton.engine.request.request import Request
from baton.gateway.text.served_model import ServedModel
from baton.platform.models.model_folder import find_model

VOCAB_SIZE, MAX_LEN, EOS = 4096, 2048, 1


def make_moe_folder(folder: Path) -> Path:
    make_mixtral(
        folder,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=MAX_LEN,
        num_local_experts=4,
        eos_token_id=EOS,
        bos_token_id=0,
    )
    demo = find_model("demo")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(demo / name, folder / name)
    return folder


def greedy_on_one_rank(folder: Path, prompts: list[str], max_tokens: int) -> list[list[int]]:
    tokenizer = ServedModel.load(folder, "one").tokenizer
    engine = assemble_engine(folder, EngineConfig(), dtype="float32", device="cpu")
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    requests = [
        Request(str(number), tokenizer.encode(prompt, add_special_tokens=True), sampling=sampling)
        for number, prompt in enumerate(prompts)
    ]
    for request in requests:
        engine.add(request)
    while engine.has_work:
        engine.step()
    return [request.output for request in requests]
