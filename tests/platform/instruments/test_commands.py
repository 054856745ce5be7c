"""`baton bench engine` and `baton profile` on a tiny model: that all of it works, no number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.tiny_checkpoints import make_llama
from typer.testing import CliRunner, Result

from baton.engine.speculation.draft_tally import DraftCounts
from baton.platform.cli.main import app
from baton.platform.instruments.speculation_bench import draft_use

pytestmark = pytest.mark.usefixtures("small_probes")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("model"))


def baton(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_an_engine_is_measured_beside_its_ceilings(folder: Path, tmp_path: Path) -> None:
    out, png = tmp_path / "out.json", tmp_path / "out.png"
    sizes = ("--length", 16, "--length", 40, "--batch", 1, "--batch", 3, "--context", 20)

    result = baton("bench", "engine", folder, *sizes, "--json", out, "--png", png)

    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())
    assert [point["context"] for point in found["prefill"]] == [16, 40]
    assert [point["batch"] for point in found["decode"]] == [1, 3]
    for point in (*found["prefill"], *found["decode"]):
        assert point["tokens_s"] > 0
        assert point["regime"] in result.output
        assert point["first_experiment"]
        assert point["parts"]["attention"]["seconds"] > 0
    assert found["ceilings"]["read_gb_s"] > 0
    assert found["model"]["ready_s"] > 0
    assert png.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_products_of_narrow_weights_have_ceilings_of_their_own(
    quantize: str, folder: Path, tmp_path: Path
) -> None:
    out, png = tmp_path / "out.json", tmp_path / "out.png"
    sizes = ("--length", 16, "--batch", 1, "--context", 20, "--quantize", quantize)

    result = baton("bench", "engine", folder, *sizes, "--json", out, "--png", png)

    assert result.exit_code == 0, result.output
    ceilings = json.loads(out.read_text())["ceilings"]
    rates = ceilings["tflop_s_by_part"]
    assert set(rates) == {"qkv", "attention out", "gate and up", "down", "head"}
    assert all(rate >= ceilings["tflop_s"] for rate in rates.values())
    assert rates["qkv"] == rates["down"]  # of one kind
    assert "narrow weights" in result.output


def test_weights_as_wide_as_activations_have_the_ceiling_of_the_dtype(
    folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"

    baton("bench", "engine", folder, "--measure", "prefill", "--length", 8, "--json", out)

    assert json.loads(out.read_text())["ceilings"]["tflop_s_by_part"] == {}


def test_what_does_not_fit_is_skipped_with_its_reason(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    sizes = ("--length", 4096, "--batch", 1, "--context", 5000)

    result = baton("bench", "engine", folder, *sizes, "--json", out)

    assert result.exit_code == 0, result.output
    skipped = json.loads(out.read_text())["skipped"]
    assert [one["what"] for one in skipped] == ["prefill of 4096", "decode of 1 at 5000"]
    assert "512 tokens a request" in skipped[0]["why"]


def test_only_what_was_asked_for_is_measured(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"

    baton("bench", "engine", folder, "--measure", "prefill", "--length", 8, "--json", out)

    found = json.loads(out.read_text())
    assert found["prefill"] and not found["decode"]


def test_without_matplotlib_a_picture_is_refused_with_the_remedy(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)

    result = baton("bench", "engine", folder, "--png", "out.png")

    assert result.exit_code == 2
    assert "baton-llm[plots]" in result.stderr


def test_a_profile_tells_where_steps_spend_their_time(folder: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"

    result = baton(
        *("profile", folder, "--requests", 3, "--prompt-tokens", 20, "--output-tokens", 5),
        *("--trace", trace),
    )

    assert result.exit_code == 0, result.output
    for phase in ("schedule", "attention", "gate and up", "head", "sampling", "1 prefill"):
        assert phase in result.output
    steps = [
        event
        for event in json.loads(trace.read_text())["traceEvents"]
        if event["name"].startswith("step")
    ]
    assert [step["args"]["tokens"] for step in steps] == [60, 3, 3, 3, 3]


def test_a_profile_of_requests_too_long_for_the_model_is_refused(folder: Path) -> None:
    result = baton("profile", folder, "--prompt-tokens", 600)

    assert result.exit_code == 2
    assert "--prompt-tokens" in result.stderr


def test_with_a_method_it_is_told_what_became_of_drafts(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    sizes = ("--measure", "decode", "--batch", 2, "--context", 20)

    benched = baton("bench", "engine", folder, *sizes, "--speculate", "ngram", "--json", out)
    profiled = baton("profile", folder, "--requests", 2, "--speculate", "ngram")

    assert benched.exit_code == profiled.exit_code == 0, benched.output + profiled.output
    [point] = json.loads(out.read_text())["speculation"]
    assert point["batch"] == 2 and point["plain_tokens_s"] > 0 and point["times_plain"] > 0
    assert "drafted by ngram" in benched.output
    assert "what became of drafts" in profiled.output


def test_rows_that_drafts_wasted_are_told_by_position() -> None:
    before = DraftCounts(10, (8, 4), (6, 1))
    after = DraftCounts(40, (18, 14, 5), (11, 3))

    use = draft_use(before, after, num_decodes=14, draft_s=1.0, seconds=8.0)

    assert (use.num_proposed, use.num_verified, use.num_accepted) == (30, 25, 7)
    assert use.num_wasted == 18
    assert use.acceptance_at == [0.5, 0.2, 0.0]
    assert use.tokens_per_step == 1.5
