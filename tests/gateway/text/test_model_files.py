"""What is read of a model folder, in the shapes that such folders come in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.scripted import BOS, MODEL, json_vocab_size, write_model_folder
from transformers import AutoTokenizer

from baton.core.errors import CheckpointError, InvalidConfig, InvalidRequest
from baton.gateway.text.model_files import ModelFiles, SamplingDefaults
from baton.gateway.text.served_model import ServedModel

DEMO = Path(__file__).parents[3] / "examples" / "demo_model" / "checkpoint"


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


def test_a_folder_is_read(tmp_path: Path) -> None:
    write_model_folder(
        tmp_path,
        bos_token={"content": BOS, "lstrip": False},
        eos_token="</s>",
        unk_token=None,
        chat_template="{{ bos_token }}",
    )
    write_json(
        tmp_path / "generation_config.json", {"temperature": 0.6, "top_k": 20, "top_p": None}
    )

    files = ModelFiles.read(tmp_path)

    assert files.special_tokens == {"bos_token": BOS, "eos_token": "</s>"}
    assert files.chat_templates == {"default": "{{ bos_token }}"}
    assert files.sampling == SamplingDefaults(temperature=0.6, top_k=20)
    assert files.vocab_size == json_vocab_size()
    assert files.context_len == 128


def test_a_template_file_comes_before_tokenizer_config(tmp_path: Path) -> None:
    write_model_folder(tmp_path, chat_template="old")
    write_json(tmp_path / "chat_template.json", {"chat_template": "a processor's"})
    (tmp_path / "chat_template.jinja").write_text("new")

    assert ModelFiles.read(tmp_path).chat_templates == {"default": "new"}


NAMED = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]


@pytest.mark.parametrize("given", [None, NAMED])
def test_named_templates_are_chosen_as_transformers_does(tmp_path: Path, given: Any) -> None:
    """Of a list, or of files, which then count alone."""
    write_model_folder(tmp_path, chat_template=given or "stale")
    if given is None:
        (tmp_path / "chat_template.jinja").write_text("d")
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("t")
    oracle = AutoTokenizer.from_pretrained(tmp_path)

    model = ServedModel.load(tmp_path, MODEL)

    for tools in (None, [{"type": "function"}]):
        chosen = model.require_chat_template(has_tools=tools is not None)
        assert chosen.source == oracle.get_chat_template(tools=tools)


def test_without_a_default_only_conversations_with_tools_have_a_template(tmp_path: Path) -> None:
    write_model_folder(tmp_path, chat_template=NAMED[:1])
    model = ServedModel.load(tmp_path, MODEL)

    assert model.require_chat_template(has_tools=True).source == "t"
    with pytest.raises(InvalidRequest, match="tool_use"):
        model.require_chat_template()


def test_a_processors_template_is_the_last_resort(tmp_path: Path) -> None:
    write_model_folder(tmp_path)
    write_json(tmp_path / "chat_template.json", {"chat_template": "a processor's"})

    assert ModelFiles.read(tmp_path).chat_templates == {"default": "a processor's"}


def test_the_operators_template_stands_in_for_all_of_the_models(tmp_path: Path) -> None:
    write_model_folder(tmp_path, chat_template=NAMED)
    mine = tmp_path / "mine.jinja"
    mine.write_text("mine")

    for setting in (str(mine), "{# inline #}mine"):
        model = ServedModel.load(tmp_path, MODEL, chat_template=setting)
        assert model.require_chat_template(has_tools=True).render([]) == "mine"
    with pytest.raises(InvalidConfig, match=r"gateway\.chat_template"):
        ServedModel.load(tmp_path, MODEL, chat_template="nowhere.jinja")


def test_sizes_may_be_those_of_the_text_model(tmp_path: Path) -> None:
    write_model_folder(tmp_path)
    nested = {"text_config": {"vocab_size": 77, "max_position_embeddings": 99}}
    write_json(tmp_path / "config.json", nested)

    files = ModelFiles.read(tmp_path)

    assert (files.vocab_size, files.context_len) == (77, 99)


def test_optional_files_may_be_missing(tmp_path: Path) -> None:
    write_model_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()

    model = ServedModel.load(tmp_path, MODEL)

    assert model.chat_templates.choose(has_tools=True) is None
    assert model.sampling == SamplingDefaults()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "{"),
        ("config.json", "[]"),
        ("config.json", '{"vocab_size": 10}'),
        ("tokenizer.json", "{}"),
        ("tokenizer_config.json", '{"chat_template": 3}'),
        ("tokenizer_config.json", '{"chat_template": "{% if %}"}'),
        ("generation_config.json", '{"temperature": "hot"}'),
    ],
)
def test_broken_files_are_refused(tmp_path: Path, name: str, content: str) -> None:
    write_model_folder(tmp_path)
    (tmp_path / name).write_text(content)

    with pytest.raises(CheckpointError):
        ServedModel.load(tmp_path, MODEL)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    write_model_folder(tmp_path)
    (tmp_path / "tokenizer.json").unlink()

    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        ModelFiles.read(tmp_path)


def test_the_demo_model_can_be_served() -> None:
    model = ServedModel.load(DEMO, "demo")

    prompt = model.require_chat_template().render([{"role": "user", "content": " Hi "}])
    tokens = model.tokenizer.encode(prompt, add_special_tokens=False)

    assert prompt == "<|begin|><|user|>Hi<|end|><|assistant|>"
    assert [token for token in tokens if model.tokenizer.is_special(token)] == [0, 4, 1, 5]
