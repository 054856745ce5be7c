"""`baton generate`: offline, and what the server would say."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.scripted import (
    TEMPLATE,
    eos_token,
    json_vocab_size,
    text_tokenizer,
    tokenizer_json,
)
from tests.peft_adapters import make_adapter, peft_greedy
from tests.tiny_checkpoints import make_llama, transformers_greedy
from typer.testing import CliRunner, Result

from baton.platform.cli.commands.generate import texts_of
from baton.platform.cli.main import app


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


PROMPTS = ["the quick brown fox", "Hello world, how are", "x"]
NUM_TOKENS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_llama(folder, vocab_size=json_vocab_size(), eos_token_id=eos_token())
    (folder / "tokenizer.json").write_text(tokenizer_json())
    special = {"bos_token": "<s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    return folder


def generate(folder: Path, *arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, ["generate", str(folder), *arguments], input=stdin)


def answers(folder: Path, *arguments: str, stdin: str = "") -> list[dict[str, Any]]:
    result = generate(folder, "--json", *arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


GREEDY = ("--temperature", "0", "--max-tokens", str(NUM_TOKENS), "--ignore-eos")


def test_greedy_tokens_are_those_of_transformers(folder: Path) -> None:
    tokens = [text_tokenizer().encode(text, add_special_tokens=True) for text in PROMPTS]
    expected = transformers_greedy(folder, tokens, NUM_TOKENS)

    found = answers(folder, "--temperature", "0", "--max-tokens", str(NUM_TOKENS), *PROMPTS)

    assert [answer["prompt"] for answer in found] == PROMPTS
    assert [answer["token_ids"] for answer in found] == expected
    assert [answer["usage"] for answer in found] == [
        {
            "prompt_tokens": len(prompt),
            "cached_tokens": 0,
            "cache_write_tokens": 0,
            "output_tokens": len(output),
        }
        for prompt, output in zip(tokens, expected, strict=True)
    ]
    assert [answer["receipt"]["output_tokens"] for answer in found] == list(map(len, expected))


def test_with_an_adapter_they_are_those_of_peft(folder: Path, tmp_path: Path) -> None:
    adapter = make_adapter(folder, tmp_path, ["q_proj", "v_proj"])
    prompt = text_tokenizer().encode(PROMPTS[0], add_special_tokens=True)

    [found] = answers(folder, f"--adapter=sql={adapter}", *GREEDY, PROMPTS[0])
    two = generate(folder, f"--adapter=a={adapter}", f"--adapter=b={adapter}", PROMPTS[0])

    assert found["token_ids"] == peft_greedy(folder, adapter, prompt, NUM_TOKENS)
    assert found["receipt"]["adapter"] == "sql"
    assert two.exit_code == 2 and "with one adapter, not 2" in two.stderr


def test_text_is_printed_as_it_is_and_nothing_else(folder: Path) -> None:
    [answer] = answers(folder, *GREEDY, PROMPTS[0])

    result = generate(folder, *GREEDY, PROMPTS[0])

    assert result.exit_code == 0
    assert result.stdout == answer["text"] + "\n"
    assert result.stderr == ""


def test_lines_of_standard_input_are_prompts(folder: Path) -> None:
    lines = "\n".join([*PROMPTS[:2], "", PROMPTS[2], ""])

    found = answers(folder, *GREEDY, stdin=lines)
    headed = generate(folder, *GREEDY, "-", stdin=lines).stdout

    assert [answer["prompt"] for answer in found] == PROMPTS
    assert [answer["text"] for answer in found] == [
        answer["text"] for answer in answers(folder, *GREEDY, *PROMPTS)
    ]
    assert headed == "".join(f"> {one['prompt']}\n{one['text']}\n\n" for one in found)


def test_a_seed_draws_the_same_text_again(folder: Path) -> None:
    options = ("--seed", "7", "--temperature", "1.3", "--top-p", "0.9", *GREEDY[2:], PROMPTS[0])

    first, again = answers(folder, *options), answers(folder, *options, PROMPTS[1])[:1]
    other = answers(folder, "--seed", "8", *options[2:])

    assert first[0]["token_ids"] == again[0]["token_ids"] != other[0]["token_ids"]


def test_chat_fills_in_the_models_template(folder: Path) -> None:
    [plain] = answers(folder, *GREEDY, "<|system|>short<|user|>Hello<|assistant|>")

    [chat] = answers(folder, *GREEDY, "--system", "short", "Hello")

    assert chat["text"] == plain["text"]
    assert chat["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]


def test_a_stop_string_ends_the_text(folder: Path) -> None:
    [whole] = answers(folder, *GREEDY, PROMPTS[0])
    stop = whole["text"][4:6]

    [stopped] = answers(folder, *GREEDY, "--stop", stop, PROMPTS[0])

    assert stopped["text"] == whole["text"][: whole["text"].index(stop)]
    assert stopped["finish_reason"] == "stop"


def test_text_can_be_held_to_a_schema_or_an_expression(folder: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text(
        '{"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}'
    )
    options = ("--max-tokens", "60", "--temperature", "0")

    [held] = answers(folder, *options, "--json-schema", str(schema), "x")
    [matched] = answers(folder, *options, "--regex", "[ab]{5}", "x")
    both = generate(folder, "--json-schema", str(schema), "--regex", "a", "x")
    lost = generate(folder, "--json-schema", "/no/schema", "x")

    assert json.loads(held["text"])["a"] in (1, 2)
    assert len(matched["text"]) == 5 and set(matched["text"]) <= {"a", "b"}
    assert (both.exit_code, lost.exit_code) == (2, 2)
    assert "exclude each other; leave one out" in both.stderr


def test_stats_go_to_standard_error(folder: Path) -> None:
    result = generate(folder, *GREEDY, "--stats", *PROMPTS)

    assert "tokens/s, 3 prompts" in result.stderr
    assert "tokens/s" not in result.stdout


def test_a_prompt_that_is_refused_does_not_keep_the_others_from_running(folder: Path) -> None:
    result = generate(folder, "--json", *GREEDY, PROMPTS[0], "fox " * 600, PROMPTS[1])

    assert result.exit_code == 2
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [bool(line.get("text")) for line in lines] == [True, False, True]
    assert "maximum context length is 512" in lines[1]["error"]
    [complaint] = result.stderr.splitlines()
    assert complaint.startswith("baton generate: prompt 2: this model's maximum context")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--temperature", "-1", "x"), "temperature must be at least 0; got -1"),
        (("--max-tokens", "0", "x"), "max_tokens must be at least 1; got 0"),
        (("--block-size", "0", "x"), "block_size must be greater than 0, not 0"),
        (("--device", "abacus", "x"), "'abacus' is not one of"),
    ],
)
def test_mistakes_are_told_in_one_line(
    folder: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    result = generate(folder, *arguments)

    assert result.exit_code == 2
    assert result.stdout in ("", "\n")
    [line] = result.stderr.splitlines()
    assert " generate: " in line and complaint in line


def test_a_model_without_template_cannot_chat(folder: Path, tmp_path: Path) -> None:
    for file in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / file).symlink_to(folder / file)

    result = generate(tmp_path, "--chat", "Hello")

    assert result.exit_code == 2
    assert "has no chat template" in result.stderr


def test_dummy_weights_need_config_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").symlink_to(folder / "config.json")

    [answer] = answers(tmp_path, "--load-format", "dummy", *GREEDY, "Grüße")

    assert answer["usage"]["prompt_tokens"] == len("Grüße".encode())
    assert len(answer["token_ids"]) == NUM_TOKENS
    assert generate(tmp_path, "x").exit_code == 2


def test_ctrl_c_ends_it_without_a_trace(folder: Path) -> None:
    arguments = [sys.executable, "-m", "baton.platform.cli.main", "generate", str(folder)]
    arguments += ["--ignore-eos", "--max-model-len", "512"]
    arguments += ["x"] * 300  # more than a fast machine generates while this one is held up
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    # A shell has its background jobs ignore SIGINT, and their children inherit that.
    with subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate()

    assert process.returncode == 130
    assert error == b""


@pytest.mark.parametrize(
    ("stdin", "told"),
    [
        (io.StringIO("b\n\nc"), ""),
        (Terminal("b\n\nc"), "prompts from standard input, one a line; Ctrl-D ends them\n"),
    ],
)
def test_who_would_type_prompts_is_told_that_they_are_read(
    stdin: io.StringIO, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(texts_of(["a", "-"], stdin)) == ["a", "b", "c"]
    assert capsys.readouterr().err == told
