"""`baton config`, and the options that stand for settings."""

from __future__ import annotations

import json
import typing
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import msgspec
import pytest
from typer.testing import CliRunner

from baton.core.attribute_docs import attribute_docs
from baton.platform.cli.main import app
from baton.platform.cli.options.config_options import ENGINE_OPTIONS, SERVE_OPTIONS
from baton.platform.config.deployment import DeploymentConfig, configure, parse_config
from baton.platform.config.docs import SECRETS, json_schema, settings

run = CliRunner().invoke


def shown(*arguments: str) -> Any:
    result = run(app, ["config", "show", *arguments])
    assert result.exit_code == 0, result.output
    return msgspec.yaml.decode(result.output)


def test_what_is_shown_is_what_would_be_served() -> None:
    assert parse_config(shown()) == DeploymentConfig()

    config = parse_config(
        shown("org/m@v2", "--port", "0", "--no-prefix-caching", "--cors-origin", "https://a.b")
    )

    assert (config.model, config.model_name, config.gateway.port) == ("org/m@v2", "m", 0)
    assert config.gateway.cors_origins == ("https://a.b",)
    assert not config.prefill.cache.prefix_caching
    assert not config.decode.cache.prefix_caching


def test_options_come_before_the_file_and_the_file_before_defaults(tmp_path: Path) -> None:
    file = tmp_path / "baton.yaml"
    file.write_text("dtype: float16\ndecode: {replicas: 3, cache: {num_blocks: 7}}\n")

    config = parse_config(shown("-f", str(file), "--decode", "2"))

    assert (config.dtype, config.decode.replicas, config.decode.cache.num_blocks) == (
        "float16",
        2,
        7,
    )


def test_secrets_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_API_KEYS", "hush quiet")

    for arguments in ([], ["--json"], ["--defaults"]):
        result = run(app, ["config", "show", *arguments])
        assert "hush" not in result.output and "quiet" not in result.output
        assert result.output.count("********") == 2
    assert settings().keys() >= {path for path in SECRETS if "*" not in path}


def test_nor_are_the_keys_of_tenants_or_what_names_their_blocks(tmp_path: Path) -> None:
    file = tmp_path / "baton.yaml"
    file.write_text(
        "gateway:\n  cache_secret: hush\n  tenants:\n"
        "    acme: {api_keys: [quiet, still], kv_share: 0.5}\n"
    )

    for arguments in ([], ["--json"], ["--defaults"]):
        result = run(app, ["config", "show", "-f", str(file), *arguments])
        assert not [word for word in ("hush", "quiet", "still") if word in result.output]
        assert result.output.count("********") == 3
    assert shown("-f", str(file))["gateway"]["tenants"]["acme"]["kv_share"] == 0.5


def test_defaults_are_marked_on_request() -> None:
    lines = run(app, ["config", "show", "--port", "7", "--defaults"]).output.splitlines()

    assert "  port: 7" in lines
    assert "  grpc_port: 8001  # default" in lines
    assert "  api_keys: []  # default" in lines
    assert "  port: 7" in run(app, ["config", "show", "--port", "7"]).output.splitlines()


def test_json_is_the_same_tree() -> None:
    assert json.loads(run(app, ["config", "show", "--json"]).output) == shown()


def test_the_schema_accepts_the_defaults_and_refuses_what_serve_would() -> None:
    schema = json.loads(run(app, ["config", "schema"]).output)

    jsonschema.validate(json.loads(msgspec.json.encode(DeploymentConfig())), schema)
    mistakes: list[dict[str, Any]] = [
        {"prefil": {}},
        {"gateway": {"port": 70000}},
        {"decode": {"cache": {"blocks": 3}}},
        {"dtype": "int8"},
    ]
    for wrong in mistakes:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_every_setting_is_explained_in_the_schema_and_the_help() -> None:
    undocumented = [setting.path for setting in settings().values() if not setting.doc]
    assert undocumented == []

    port = json_schema()["$defs"]["GatewayPoolConfig"]["properties"]["port"]
    assert port["description"] == "The port of the OpenAI-compatible HTTP API."


def test_docs_of_attributes_are_inherited_and_put_on_one_line() -> None:
    class Base:
        a: int = 1
        """First
        line."""

    class Derived(Base):
        b: int = 2
        c: int = 3
        """Third."""

    assert attribute_docs(Derived) == {"a": "First line.", "c": "Third."}


@pytest.mark.parametrize("option", SERVE_OPTIONS, ids=lambda option: option.flag)
def test_every_option_sets_what_it_names(option: Any) -> None:
    setting = option.setting
    value, expected = example(setting.type)
    flag = option.flag.split("/")[-1] if isinstance(setting.default, bool) else option.flag
    given = [flag] if isinstance(setting.default, bool) else [flag, value]
    spread = ["--tensor-parallel", "2", "--expert-parallel", "2"]
    besides = {
        "--tls-cert": ["--tls-key", "k"],
        "--tls-key": ["--tls-cert", "c"],
        "--draft-model": ["--speculate", "draft"],
        "--expert-parallel": ["--tensor-parallel", value],
        "--redundant-experts": spread,
        "--rebalance-passes": spread,
    }

    found = shown(*given, *besides.get(flag, []))

    for path in option.paths:
        node = found
        for key in path.split("."):
            node = node[key]
        if path in SECRETS:
            assert node == ["********"]
        else:
            assert node == (False if isinstance(setting.default, bool) else expected)


def example(hint: Any) -> tuple[str, Any]:
    """A value of the type, as an option and as YAML has it."""
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) is typing.Literal:
        last = typing.get_args(hint)[-1]
        return last, last
    match str(hint).replace("<class '", "").replace("'>", ""):
        case "int" | "int | None":
            return "2", 2
        case "float" | "float | None":
            return "0.5", 0.5
        case "frozenset[str]" | "tuple[str, ...]":
            return "x", ["x"]
        case "dict[str, str]":
            return "x=y", {"x": "y"}
    return "x", "x"


def test_options_of_both_pools_name_the_same_setting_twice() -> None:
    for option in ENGINE_OPTIONS:
        names = {path.partition(".")[2] for path in option.paths}
        assert len(names) == 1 and len(option.paths) == 2


def test_no_two_options_have_the_same_name_or_path() -> None:
    paths = [path for option in SERVE_OPTIONS for path in option.paths]

    assert len({option.parameter for option in SERVE_OPTIONS}) == len(SERVE_OPTIONS)
    assert len(set(paths)) == len(paths)
    assert set(paths) <= set(settings())


def test_serve_lists_its_options_as_the_tree_does() -> None:
    output = run(app, ["serve", "--help"], terminal_width=200).output

    headings = [line.split("─")[1].strip() for line in output.splitlines() if line.startswith("╭")]
    assert headings[2:] == [
        *("Model", "Engine", "Prefill pool", "Decode pool"),
        *("Gateway", "Transfer", "Health", "Ray", "Log"),
    ]
    assert "OpenAI-compatible HTTP" in output


def test_a_wrong_file_is_told_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "baton.yaml"
    file.write_text("decode: {replicas: 0}")

    result = run(app, ["config", "show", "-f", str(file)])

    assert result.exit_code == 2
    [line] = result.stderr.splitlines()
    assert line.startswith(f"baton config show: {file}: decode.replicas must be at least 1")


def test_no_file_and_no_options_are_the_defaults() -> None:
    assert configure(None, {}) == DeploymentConfig()
