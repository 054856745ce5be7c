"""Labels and scores of real models, through gateway, P and D: those of transformers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from tests.gateway.scripted import json_vocab_size, tokenizer_json
from tests.in_process_fleet import running_fleet
from tests.tiny_checkpoints import make_llama, make_qwen3, transformers_logits
from tests.tiny_classifiers import LABELS, as_classifier, transformers_label_logits
from transformers import PreTrainedTokenizerFast

from baton.core.replicas import Role
from baton.engine.assemble import assemble_engine
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.engine import Engine
from baton.gateway.access.config import GatewayConfig
from baton.gateway.server import GatewayServer
from baton.gateway.text.classifier import QWEN3_RERANKER
from baton.gateway.text.served_model import ServedModel

QUERY = "how are you?"
DOCUMENTS = ["the lazy dog", "Hello world, " * 9, "the quick brown fox", "you"]


@asynccontextmanager
async def gateway_of(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Prompts are computed in chunks, and share their beginnings."""
    (folder / "tokenizer.json").write_text(tokenizer_json())
    config = EngineConfig(
        cache=CacheConfig(block_size=4, num_blocks=256), scheduler=SchedulerConfig(prefill_chunk=7)
    )

    def make_engine(role: Role) -> Engine:
        return assemble_engine(folder, config, dtype="float32", device="cpu")

    async with running_fleet(make_engine=make_engine) as fleet:
        server = GatewayServer(
            model=ServedModel.load(folder, "tiny"),
            dispatcher=fleet.dispatcher,
            config=GatewayConfig(host="127.0.0.1", port=0, grpc_port=0),
        )
        await server.start()
        try:
            url = f"http://127.0.0.1:{server.http_port}"
            async with httpx.AsyncClient(base_url=url, timeout=60) as client:
                yield client
        finally:
            await server.stop(grace_s=0)
        await fleet.assert_nothing_is_held()


async def post(client: httpx.AsyncClient, path: str, **body: Any) -> Any:
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def hugging_face(folder: Path) -> Any:
    tokenizer: Any = PreTrainedTokenizerFast  # has no types
    return tokenizer(tokenizer_file=str(folder / "tokenizer.json"))


async def test_a_classifier_classifies_and_generates_nothing(tmp_path: Path) -> None:
    folder = as_classifier(make_llama(tmp_path, vocab_size=json_vocab_size()))
    async with gateway_of(folder) as client:
        answer = await post(client, "/classify", input=DOCUMENTS)
        raw = await post(client, "/v1/classify", input=DOCUMENTS, use_activation=False)
        text = await client.post("/v1/completions", json={"prompt": "Hello"})
        chat = await client.post(
            "/v1/messages", json={"messages": [{"role": "user", "content": "a"}]}
        )
        pair = await client.post("/score", json={"text_1": QUERY, "text_2": "dog"})

    prompts = [hugging_face(folder)(text)["input_ids"] for text in DOCUMENTS]
    wanted = transformers_label_logits(folder, prompts)
    for entry, bare, logits in zip(answer["data"], raw["data"], wanted, strict=True):
        probabilities = logits.softmax(-1)
        assert entry["probs"] == pytest.approx(probabilities.tolist(), abs=1e-5)
        assert bare["probs"] == pytest.approx(logits.tolist(), abs=1e-4)
        assert entry["label"] == LABELS[int(probabilities.argmax())]
        assert entry["num_classes"] == 3
    assert answer["usage"]["prompt_tokens"] == sum(map(len, prompts))
    for refused, reason in (text, "generates no text"), (chat, ""), (pair, "3 labels"):
        assert refused.status_code == 400
        assert reason in refused.json()["error"]["message"]


async def test_a_cross_encoder_scores_pairs(tmp_path: Path) -> None:
    folder = as_classifier(make_qwen3(tmp_path, vocab_size=json_vocab_size()), labels=("good",))
    async with gateway_of(folder) as client:
        scores = await post(client, "/v1/score", text_1=QUERY, text_2=DOCUMENTS)
        both = await post(client, "/v1/score", queries=DOCUMENTS, documents=DOCUMENTS[::-1])
        ranked = await post(client, "/v2/rerank", query=QUERY, documents=DOCUMENTS, top_n=3)
        again = await post(client, "/rerank", query=QUERY, documents=DOCUMENTS)

    encode = hugging_face(folder)
    prompts = [encode(QUERY, document)["input_ids"] for document in DOCUMENTS]
    wanted = torch.cat(transformers_label_logits(folder, prompts)).sigmoid().tolist()
    assert [entry["score"] for entry in scores["data"]] == pytest.approx(wanted, abs=1e-5)
    prompts = [encode(*pair)["input_ids"] for pair in zip(DOCUMENTS, DOCUMENTS[::-1], strict=True)]
    crossed = torch.cat(transformers_label_logits(folder, prompts)).sigmoid().tolist()
    assert [entry["score"] for entry in both["data"]] == pytest.approx(crossed, abs=1e-5)
    order = sorted(range(4), key=lambda i: -wanted[i])
    assert [entry["index"] for entry in ranked["results"]] == order[:3]
    assert [entry["index"] for entry in again["results"]] == order
    assert [entry["document"]["text"] for entry in ranked["results"]] == [
        DOCUMENTS[i] for i in order[:3]
    ]


async def test_a_reranker_of_yes_and_no_scores_pairs_and_generates(tmp_path: Path) -> None:
    """As Qwen 3's are: the prompt of its authors, and the odds of one token against another."""
    folder = make_qwen3(tmp_path, vocab_size=json_vocab_size(), tie_word_embeddings=True)
    path = folder / "config.json"
    described = json.loads(path.read_text()) | {
        "architectures": ["Qwen3ForSequenceClassification"],
        "classifier_from_token": ["o", "e"],
        "is_original_qwen3_reranker": True,
    }
    path.write_text(json.dumps(described))
    async with gateway_of(folder) as client:
        ranked = await post(client, "/rerank", query="fox", documents=DOCUMENTS[2:])
        answer = await post(client, "/v1/completions", prompt="Hello", max_tokens=2)

    path.write_text(json.dumps(described | {"architectures": ["Qwen3ForCausalLM"]}))
    begin, _, rest = QWEN3_RERANKER.partition("<Instruct>: ")
    *_, end = rest.partition("<|im_end|>")
    end = end.removesuffix("{{ '' }}")
    instruction = "Given a web search query, retrieve relevant passages that answer the query"
    encode = hugging_face(folder)
    no, yes = encode.convert_tokens_to_ids(["o", "e"])
    for entry in ranked["results"]:
        text = f"{begin}<Instruct>: {instruction}\n<Query>: fox\n<Document>: "
        text += DOCUMENTS[2:][entry["index"]] + "<|im_end|>" + end
        prompt = encode(text, add_special_tokens=False)["input_ids"]
        logits = transformers_logits(folder, prompt)[-1]
        wanted = logits[[no, yes]].softmax(-1)[1].item()
        assert entry["relevance_score"] == pytest.approx(wanted, abs=1e-5)
    assert answer["usage"]["completion_tokens"] >= 1
