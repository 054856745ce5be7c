"""/v1/classify, /v1/score and /v1/rerank: what is asked, what is answered, what is refused."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.scripted import (
    BOS,
    MODEL,
    Script,
    ScriptedDispatcher,
    Serving,
    embedding_of,
    error_of,
    make_model,
    serving,
    soon,
    text_tokenizer,
    write_model_folder,
)

from baton.core.errors import CheckpointError, InvalidConfig
from baton.core.messages import Pooling
from baton.gateway.text.chat_template import ChatTemplate
from baton.gateway.text.classifier import Classifier, as_they_are, sigmoid, softmax
from baton.gateway.text.pooling_files import PoolingFiles
from baton.gateway.text.served_model import ServedModel

TEMPLATE = "{{ instruction }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}!"
DOCUMENTS = ["fox", "the lazy dog", "Hello world"]


def of_labels(*labels: str, **options: Any) -> ServedModel:
    """The scripted logits are 3, 4 and more: see `embedding_of`."""
    classifier = Classifier(
        labels=labels, **{"label_activation": softmax, "pair_activation": sigmoid, **options}
    )
    return replace(make_model(), classifier=classifier)


JUDGE = of_labels("good", tokens=(7, 5), is_two_way=True)
EMBEDDER = replace(make_model(), pooling=PoolingFiles(pooling=Pooling.LAST))


async def post(gateway: Serving, path: str, **body: Any) -> Any:
    response = await gateway.http.post(path, json={"model": MODEL, **body})
    assert response.status_code == 200, response.text
    return response.json()


def prompts_of(gateway: Serving) -> list[tuple[int, ...]]:
    return [generation.prompt for generation in gateway.dispatcher.generations]


async def test_labels_come_in_the_shape_of_vllm() -> None:
    async with serving(model=of_labels("a", "b", "c", "d")) as gateway:
        answer = await post(gateway, "/v1/classify", input=[[4, 5], [6]])

    assert answer["id"].startswith("classify-") and answer["object"] == "list"
    assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    first, second = answer["data"]
    assert (first["index"], first["num_classes"], first["label"]) == (0, 4, "d")
    assert first["probs"] == pytest.approx(softmax(embedding_of([4, 5])))
    assert sum(second["probs"]) == pytest.approx(1)
    (generation, _) = gateway.dispatcher.generations
    assert (generation.pooling, generation.sampling.allowed_token_ids) == (Pooling.LOGITS, ())


async def test_the_best_documents_come_first() -> None:
    """The scripted logits of a pair are 3 and 4, so all scores are equal: in the order given."""
    async with serving(model=JUDGE) as gateway:
        answer = await post(gateway, "/v1/rerank", query="Hello", documents=DOCUMENTS, top_n=2)
        bare = await post(
            gateway,
            "/rerank",
            query="Hello",
            documents=[{"text": text} for text in DOCUMENTS],
            top_n=0,
            return_documents=False,
        )
        raw = await post(
            gateway, "/score", text_1="Hello", text_2="fox", use_activation=False, softmax=True
        )

    assert answer["id"].startswith("rerank-")
    assert answer["results"] == [
        {"index": i, "relevance_score": sigmoid([1])[0], "document": {"text": DOCUMENTS[i]}}
        for i in (0, 1)
    ]
    assert [set(entry) for entry in bare["results"]] == [{"index", "relevance_score"}] * 3
    assert raw["data"] == [{"index": 0, "object": "score", "score": 1.0}]
    assert gateway.dispatcher.generations[0].sampling.allowed_token_ids == (7, 5)
    pairs = [text_tokenizer().encode("Hello", text, add_special_tokens=True) for text in DOCUMENTS]
    assert prompts_of(gateway)[:3] == pairs
    assert answer["usage"]["total_tokens"] == sum(map(len, pairs))


async def test_embeddings_are_compared_by_their_angle() -> None:
    async with serving(model=EMBEDDER) as gateway:
        answer = await post(gateway, "/v1/score", text_1="Hello", text_2=DOCUMENTS)
        num_run = len(gateway.dispatcher.generations)

    def vector(text: str) -> tuple[float, ...]:
        return embedding_of(text_tokenizer().encode(text, add_special_tokens=True))

    def cosine(a: Sequence[float], b: Sequence[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)

    expected = [cosine(vector("Hello"), vector(text)) for text in DOCUMENTS]
    assert [entry["score"] for entry in answer["data"]] == pytest.approx(expected)
    assert num_run == 4, "the text that all are compared with is embedded once"
    assert {g.pooling for g in gateway.dispatcher.generations} == {Pooling.LAST}


@pytest.mark.parametrize(
    ("model", "template"),
    [
        (JUDGE, ""),
        (of_labels("good", joins_pairs=True), ""),
        (JUDGE, TEMPLATE),
    ],
    ids=["pair", "joined", "template"],
)  # fmt: skip
async def test_the_end_of_a_long_document_is_left_out_and_nothing_else(
    model: ServedModel, template: str
) -> None:
    instruction = None
    if template:
        assert model.classifier is not None
        chosen = replace(model.classifier, pair_template=ChatTemplate(template, {}))
        model, instruction = replace(model, classifier=chosen), "Which?"
    body: dict[str, Any] = {
        "query": "Hello",
        "documents": ["the quick brown fox " * 30],
        "instruction": instruction,
    }
    async with serving(model=model) as gateway:
        await post(gateway, "/rerank", **body, truncate_prompt_tokens=40)
        await post(gateway, "/rerank", **body, truncate_prompt_tokens=-1)
        each = await post(gateway, "/rerank", **body, max_tokens_per_doc=3)
        long = await gateway.http.post("/rerank", json=body)
        little = await gateway.http.post("/rerank", json={**body, "truncate_prompt_tokens": 1})

    short, whole, three = prompts_of(gateway)
    assert (38 <= len(short) <= 40, 98 <= len(whole) <= 100) == (True, True)
    text = text_tokenizer().decode(short)
    assert text.removeprefix(BOS).startswith(
        "Which?<system>Which?<query>Hello" if template else "Hello"
    )
    assert text.endswith("!") == bool(template)
    assert model.classifier is not None
    assert text.startswith(BOS) == model.classifier.joins_pairs, "what this tokenizer has for one"
    assert "the quick brown" in (read := text_tokenizer().decode(three)) and "fox" not in read
    assert each["results"][0]["document"]["text"] == body["documents"][0]
    assert error_of(long)["code"] == "context_length_exceeded"
    assert error_of(long)["param"] == "documents[0]"
    assert error_of(little)["param"] == "truncate_prompt_tokens"


PAIR = {"text_1": "a", "text_2": "b"}
RANKED = {"query": "a", "documents": ["b"]}
REFUSED: tuple[tuple[ServedModel, tuple[tuple[str, dict[str, Any], str], ...]], ...] = (
    (JUDGE, (
        ("score", {"text_2": "b"}, "text_1"),
        ("score", {**PAIR, "queries": "a"}, "queries"),
        ("score", {**PAIR, "text_2": []}, "text_2"),
        ("score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ("score", {**PAIR, "text_2": ["b", ""]}, "text_2[1]"),
        ("score", {**PAIR, "instruction": "c"}, "instruction"),
        ("score", {**PAIR, "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ("rerank", {"documents": ["b"]}, "query"),
        ("rerank", {**RANKED, "documents": "b"}, "documents"),
        ("rerank", {**RANKED, "documents": ["b"] * 2049}, "documents"),
        ("rerank", {**RANKED, "top_n": -1}, "top_n"),
        ("rerank", {**RANKED, "priority": 2**31}, "priority"),
        ("rerank", {**RANKED, "max_tokens_per_doc": 0}, "max_tokens_per_doc"),
        ("rerank", {**RANKED, "top_k": 1}, "top_k"),
        ("classify", {}, "input"),
        ("classify", {"input": ["a", 1]}, "input[1]"),
    )),
    (of_labels("a", "b"), (("score", PAIR, "model"),)),
    (make_model(), (("rerank", RANKED, "model"), ("classify", {"input": "a"}, "model"))),
)  # fmt: skip


async def test_a_bad_field_is_named() -> None:
    for model, rows in REFUSED:
        async with serving(model=model, unknown_fields="refuse") as gateway:
            for path, body, field in rows:
                response = await gateway.http.post(f"/{path}", json=body)
                assert (response.status_code, error_of(response)["param"]) == (400, field), body
        assert not gateway.dispatcher.generations


async def test_whoever_names_a_pooling_has_any_model_compare() -> None:
    async with serving() as gateway:
        answer = await post(gateway, "/rerank", query="a", documents=["b", "a"], pooling="mean")

    assert answer["results"][0]["index"] == 1
    assert answer["results"][0]["relevance_score"] == pytest.approx(1)


async def test_a_client_that_leaves_stops_them() -> None:
    dispatcher = ScriptedDispatcher(Script(starts=asyncio.Event()))
    async with serving(model=JUDGE, dispatcher=dispatcher) as gateway:
        body = {"query": "a", "documents": ["b"] * 40}
        task = asyncio.create_task(gateway.http.post("/rerank", json=body))
        while len(dispatcher.generations) < 32:  # so many run at a time
            await asyncio.sleep(0.001)
        task.cancel()
        await soon(dispatcher.stopped)
        metrics = gateway.server.metrics_page()

    assert 'baton_gateway_open_requests{model="org/tiny"} 0' in metrics


async def test_embeddings_are_cut_where_their_authors_say_so() -> None:
    matryoshka = PoolingFiles(matryoshka_dimensions=(2, 3), pooling=Pooling.LAST)
    async with serving(model=replace(make_model(), pooling=matryoshka)) as gateway:
        cut = await post(gateway, "/v1/embeddings", input="Hello", dimensions=2)
        other = await gateway.http.post("/v1/embeddings", json={"input": "a", "dimensions": 1})
    async with serving(model=replace(make_model(), pooling=PoolingFiles(is_matryoshka=False))) as g:
        whole = await g.http.post("/v1/embeddings", json={"input": "a", "dimensions": 2})

    assert cut["data"][0]["embedding"] == pytest.approx([0.6, 0.8])
    assert gateway.dispatcher.generations[0].pooling is Pooling.LAST
    assert "one of 2, 3" in error_of(other)["message"]
    assert "is_matryoshka" in error_of(whole)["message"]


def loaded(folder: Path, **config: Any) -> ServedModel:
    write_model_folder(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    return ServedModel.load(folder, "it")


def test_what_a_folder_says_of_labels_and_pairs(tmp_path: Path) -> None:
    seq_cls = {"architectures": ["Qwen3ForSequenceClassification"]}
    plain = loaded(tmp_path)
    multi = loaded(
        tmp_path,
        **seq_cls,
        id2label={"1": "b", "0": "a"},
        problem_type="multi_label_classification",
    )
    amount = loaded(
        tmp_path,
        **seq_cls,
        num_labels=1,
        problem_type="regression",
        sentence_transformers={"activation_fn": "torch.nn.modules.linear.Identity"},
    )
    tokens = loaded(tmp_path, classifier_from_token=["a", "b", "c"], method="no_post_processing")

    assert (plain.classifier, plain.generates) == (None, True)
    assert multi.classifier is not None and not multi.generates
    assert (multi.classifier.labels, multi.classifier.label_activation) == (("a", "b"), sigmoid)
    assert amount.classifier is not None and not amount.classifier.joins_pairs
    assert amount.classifier.label_activation is amount.classifier.pair_activation is as_they_are
    assert tokens.classifier is not None and tokens.generates and tokens.classifier.joins_pairs
    assert tokens.classifier.tokens == tuple(text_tokenizer().id_of(token) for token in "abc")
    assert tokens.classifier.label_activation is softmax
    with pytest.raises(CheckpointError, match="the label token `no` is not"):
        ServedModel.load(tmp_path, "it", reranker="qwen3")
    with pytest.raises(CheckpointError, match="the label token `nothing` is not"):
        loaded(tmp_path, classifier_from_token=["a", "nothing"])
    with pytest.raises(InvalidConfig, match=r"gateway.reranker 'qwen3'"):
        multi.pooling.judging_as("qwen3")
    with pytest.raises(CheckpointError, match="problem_type"):
        loaded(tmp_path, **seq_cls, problem_type="ranking")


def test_what_sentence_transformers_say_of_a_folder(tmp_path: Path) -> None:
    kinds = {"1_Pooling": "models.Pooling", "1_LogitScore": "modules.logit_score.LogitScore"}
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_lasttoken": true}')
    found = {}
    for path, kind in kinds.items():
        modules = [{"path": path, "type": f"sentence_transformers.{kind}"}]
        (tmp_path / "modules.json").write_text(json.dumps(modules))
        found[path] = loaded(tmp_path)
    (tmp_path / "1_LogitScore").mkdir()
    (tmp_path / "1_LogitScore" / "config.json").write_text(
        '{"true_token_id": 9, "false_token_id": 4}'
    )
    judge = loaded(tmp_path).classifier

    assert found["1_Pooling"].pooling.pooling is Pooling.LAST
    assert found["1_LogitScore"].classifier is None, "its numbers were not fetched"
    assert judge is not None and (judge.tokens, judge.is_two_way) == ((4, 9), True)
    assert not judge.joins_pairs
