from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.errors import ITEM, InvalidConfig
from baton.core.replicas import Role
from baton.core.wire_security import PRIVATE_TRANSPORTS
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.kv_transfer.transports import AUTO, TRANSPORTS
from baton.platform.config.deployment import (
    DEMO_MODEL,
    DeploymentConfig,
    TransportName,
    override,
    parse_config,
    read_config,
)
from baton.platform.config.pools import DecodeConfig, PrefillConfig

FULL = """
model: /models/llama
served_model_name: llama
dtype: bfloat16
prefill:
  replicas: 2
  max_queued_tokens: 4096
  cache: {block_size: 32, memory_gib: 4}
  scheduler: {prefill_chunk: 512}
decode:
  replicas: 3
  resources: {num_cpus: 2, num_gpus: 0.5}
  cache: {block_size: 32, num_blocks: 100}
gateway:
  port: 0
  grpc_port: 0
  api_keys: [one, two]
transfer: {max_leased_fraction: 0.25}
ray: {address: auto}
"""


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "baton.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_an_empty_file_is_the_demo_on_one_prefill_and_one_decode_replica(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, "# nothing set\n"))

    assert config == DeploymentConfig()
    assert config.model == DEMO_MODEL
    assert (config.prefill.replicas, config.decode.replicas) == (1, 1)


def test_what_a_file_sets_is_set_and_the_rest_keeps_its_default(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, FULL))

    assert config.prefill == PrefillConfig(
        replicas=2,
        max_queued_tokens=4096,
        cache=CacheConfig(block_size=32, memory_gib=4),
        scheduler=SchedulerConfig(prefill_chunk=512),
    )
    assert config.decode.max_open == DecodeConfig().max_open
    assert config.gateway.api_keys == {"one", "two"}
    assert config.gateway.request_timeout_s == DeploymentConfig().gateway.request_timeout_s


def test_a_pool_hands_its_engine_the_engines_own_branch(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, FULL))

    assert config.decode.engine == EngineConfig(
        cache=CacheConfig(block_size=32, num_blocks=100), scheduler=SchedulerConfig()
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("prefil: {}", "unknown field `prefil`"),
        ("prefill: {cahce: {}}", "unknown field `cahce` - at `$.prefill`"),
        ("prefill: {cache: {blocks: 8}}", "unknown field `blocks` - at `$.prefill.cache`"),
        ("decode: {scheduler: {max: 8}}", "unknown field `max` - at `$.decode.scheduler`"),
        ("gateway: {port: 70000}", "<= 65535 - at `$.gateway.port`"),
        ("gateway: {port: '80'}", "got `str` - at `$.gateway.port`"),
        ("gateway: {api_keys: ['']}", "api_keys has an empty key; remove it - at `$.gateway`"),
        ("gateway: {model_aliases: [ok, ' ']}", "model_aliases has ' ': give names"),
        ('gateway: {model_aliases: ["a\\nb"]}', "line breaks"),
        ("gateway: {tenants: {a: {api_keys: []}}}", "at least one key in api_keys"),
        ("gateway: {tenants: {a: {api_keys: [k], kvshare: 1}}}", "field `kvshare`"),
        ("gateway: {tenants: {a: {api_keys: [k], kv_share: 2}}}", "<= 1.0 - at `$.gateway.tenants"),
        (
            "gateway: {api_keys: [k], tenants: {a: {api_keys: [k]}}}",
            "a.api_keys: a key occurs twice",
        ),
        ("gateway: {tenants: {'': {api_keys: [k]}}}", "tenants has an entry with an empty name"),
        (
            "gateway: {tenants: {a: {api_keys: [j], kv_share: 0.7}, "
            "b: {api_keys: [k], kv_share: 0.7}}}",
            "add up to 1.4; lower them to 1",
        ),
        (
            "gateway: {api_keys: [k], tenants: {a: {api_keys: [j], kv_share: 1}}}",
            "leaves no blocks for the other keys",
        ),
        ("prefill: {cache: {pinned_fraction: 1.5}}", "pinned_fraction must be in [0, 1]"),
        ("gateway: {port: 8000, grpc_port: 8000}", "must differ"),
        ("decode: {replicas: 0}", "at least 1: every request ends on one - at `$.decode`"),
        ("prefill: {replicas: -1}", ">= 0 - at `$.prefill.replicas`"),
        ("prefill: {cache: {block_size: 0}}", "block_size must be greater than 0"),
        ("prefill: {cache: {block_size: 0}}", "at `$.prefill.cache`"),
        ("prefill: {cache: {block_size: yes}}", "got `bool` - at `$.prefill.cache.block_size`"),
        ("prefill: {cache: {memory_fraction: 85}}", "memory_fraction must be in (0, 1], not 85"),
        ("prefill: {cache: {memory_gib: .inf}}", "finite number, got inf"),
        ("prefill: {cache: {memory_gib: .nan}}", "finite number, got nan"),
        ("gateway: {request_timeout_s: .inf}", "at `$.gateway.request_timeout_s`"),
        (
            "decode: {cache: {num_blocks: 4, memory_gib: 1}}",
            "set one of them",
        ),
        ("transfer: {max_leased_fraction: 1.5}", "<= 1.0 - at `$.transfer.max_leased_fraction`"),
        ("transfer: {transport: carrier-pigeon}", "'carrier-pigeon' - at `$.transfer.transport`"),
        ("transfer: {require: [pigeon]}", "'pigeon' is not a transport; choose from memory, shm"),
        ("transfer: {require: [auto]}", "'auto' is not a transport"),
        ("transfer: {transport: grpc, require: [shm]}", "'grpc' is not one of transfer.require"),
        ("dtype: int8", "'int8' - at `$.dtype`"),
        ("prefill:", "got `null` - at `$.prefill`"),
        ("prefill: {cache: {block_size: 12}}", "is 12 and decode.cache.block_size is 16: KV can"),
        ("decode: {cache: {kv_dtype: int4}}", "blocks of 4 bits are handed over unchanged"),
        ("adapters: {'': /a}", "adapters has the name ''"),
        ("adapters: {'a b': /a}", "adapters has the name 'a b'"),
        ("adapters: {demo: /a}", "adapters.demo: requests for `demo` get the model itself"),
        (
            "{adapters: {small: /a}, gateway: {model_aliases: [small]}}",
            "adapters.small: requests for `small` get the model itself",
        ),
        ("adapters: {sql: ''}", "adapters.sql is empty; give a folder"),
        ("adapters: {sql: 'https://a:b@c/d'}", "adapters.sql: a https:// URL holds a name or"),
        ("adapters: {sql: 7}", "got `int` - at `$.adapters"),
        (
            f"adapters: {{{', '.join(f'a{number}: /a' for number in range(65))}}}",
            "adapters has 65; at most 64",
        ),
        ("attention_window: 0", "attention_window must be at least 1, not 0"),
        ("attention_sinks: -1", ">= 0 - at `$.attention_sinks`"),
        ("- model", "Expected `object`, got `array`"),
        ("demo", "Expected `object`, got `str`"),
        ("1: 2", "Expected `str` for a key"),
        ("gateway: {tenants: {1: {}}}", "got `int` for a key - at `$.gateway.tenants`"),
        (
            "decode:\n  replicas: 3\nmodel: demo\ndecode:\n  max_open: 7",
            "`decode` is there twice, in lines 1 and 4; put them together - at `$`",
        ),
        ("gateway: {port: 1, port: 2}", "`port` is there twice, in lines 1 and 1"),
    ],
)
def test_a_mistake_is_refused_with_its_file_and_its_path(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = write(tmp_path, text)

    with pytest.raises(InvalidConfig) as caught:
        read_config(path)

    assert str(caught.value).startswith(f"{path}: ")
    assert complaint in str(caught.value)


def test_all_mistakes_are_told_at_once_with_what_was_meant(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "quantise: int8\n"
        "load_format: dumy\n"
        "prefil: {replicas: 2}\n"
        "app_name: mine\n"
        "decode: {replicas: two, cache: {block_size: 0}}\n"
        "gateway: {port: 8000, tenants: {a: {api_keys: [k], kv_share: 2}}}\n",
    )

    with pytest.raises(InvalidConfig) as caught:
        read_config(path)

    first, *mistakes = str(caught.value).split(ITEM)
    assert first == f"{path}: 7 mistakes; `baton config schema` says what it may hold"
    assert mistakes == [
        "Object contains unknown field `quantise`; did you mean `quantize`?",
        "Invalid enum value 'dumy' - at `$.load_format`; did you mean `dummy`?",
        "Object contains unknown field `prefil`; did you mean `prefill`?",
        "Object contains unknown field `app_name`; did you mean `ray.app_name`?",
        "Expected `int`, got `str` - at `$.decode.replicas`",
        "block_size must be greater than 0, not 0 - at `$.decode.cache`",
        "Expected `float` <= 1.0 - at `$.gateway.tenants.a.kv_share`",
    ]


def test_what_one_option_sets_for_both_pools_is_one_mistake() -> None:
    changes = {"prefill.cache.block_size": 0, "decode.cache.block_size": 0}

    with pytest.raises(InvalidConfig) as caught:
        override(DeploymentConfig(), changes)

    assert str(caught.value) == (
        "block_size must be greater than 0, not 0 - at `$.prefill.cache` and `$.decode.cache`"
    )


@pytest.mark.parametrize(
    "text",
    [
        "prefill: [",
        "model: a: b",
        "\tmodel: x",
        "? {model: x}\n: 1",
        "model: !!python/object/apply:os.getcwd []",
        "model: 2024-13-01",
        b"\xff\xfe\x00",
        b"model: \x00",
    ],
)
def test_a_file_that_is_no_yaml_is_refused_by_name(tmp_path: Path, text: str | bytes) -> None:
    path = write(tmp_path, text)

    with pytest.raises(InvalidConfig, match=f"^{path}: "):
        read_config(path)


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="No such file"):
        read_config(tmp_path / "missing.yaml")
    with pytest.raises(InvalidConfig, match="Is a directory"):
        read_config(tmp_path)


def test_ports_that_the_operating_system_chooses_may_both_be_zero() -> None:
    parse_config({"gateway": {"port": 0, "grpc_port": 0}})


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, "demo"),
        ({"model": "/models/llama-3/"}, "llama-3"),
        ({"model": "org/llama"}, "llama"),
        ({"model": "/"}, "/"),
        ({"model": "org/llama", "served_model_name": "mine"}, "mine"),
    ],
)
def test_clients_call_the_model_by_its_served_name_or_the_last_part_of_its_path(
    settings: dict[str, Any], name: str
) -> None:
    assert parse_config(settings).model_name == name


def test_overrides_change_what_they_name_and_nothing_else() -> None:
    before = parse_config({"decode": {"max_open": 7, "cache": {"prefix_caching": False}}})

    after = override(before, {"decode.replicas": 2, "model": "other"})

    assert after == parse_config(
        {
            "model": "other",
            "decode": {"replicas": 2, "max_open": 7, "cache": {"prefix_caching": False}},
        }
    )
    assert before.decode.replicas == 1


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"decode.replicas": 0}, "at `$.decode`"),
        ({"decode.replica": 2}, "unknown field `replica` - at `$.decode`"),
        ({"decoder.replicas": 2}, "unknown field `decoder`"),
        ({"decode.cache.blocks": 2}, "unknown field `blocks` - at `$.decode.cache`"),
        ({"model.name": "x"}, "`model` has no keys of its own - in `model.name`"),
        ({"gateway.grpc_port": 8000}, "must differ"),
    ],
)
def test_overrides_are_refused_like_the_file_itself(
    changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        override(DeploymentConfig(), changes)

    assert complaint in str(caught.value)


def numbers(minimum: float, maximum: float) -> st.SearchStrategy[float]:
    return st.floats(minimum, maximum, exclude_min=True, allow_nan=False)


@st.composite
def configs(draw: st.DrawFn) -> DeploymentConfig:
    counts = st.integers(1, 1 << 40)
    block_size = draw(st.integers(1, 256))
    no_space = st.characters(exclude_categories=["Z", "C"])
    keys = st.text(no_space, min_size=1).map("k".__add__)

    def pool() -> dict[str, Any]:
        size = draw(st.sampled_from(["num_blocks", "memory_gib"]))
        return {
            "replicas": draw(st.integers(1, 9)),
            "resources": {"num_cpus": draw(numbers(0, 64)), "num_gpus": draw(numbers(0, 8))},
            "cache": {"block_size": block_size, size: draw(counts)},
            "scheduler": {"prefill_chunk": draw(st.none() | counts)},
        }

    return parse_config(
        {
            "model": draw(st.text()),
            "prefill": pool(),
            "decode": pool(),
            "gateway": {
                "port": draw(st.integers(0, 4000)),
                "grpc_port": draw(st.integers(4001, 65535)),
                "api_keys": draw(st.lists(keys, max_size=3)),
                "request_timeout_s": draw(numbers(0, 1e9)),
            },
            "transfer": {"max_leased_fraction": draw(numbers(0, 1))},
        }
    )


@given(config=configs())
def test_a_config_survives_the_way_to_another_process(config: DeploymentConfig) -> None:
    text = msgspec.json.encode(config)

    assert msgspec.json.decode(text, type=DeploymentConfig) == config
    assert parse_config(msgspec.json.decode(text)) == config
    assert override(config, {}) == config


def test_the_transports_of_the_configuration_are_those_of_the_registry() -> None:
    assert set(typing.get_args(TransportName)) == {AUTO, *TRANSPORTS}


def test_kv_comes_by_what_is_chosen_or_allowed_and_else_by_any_transport() -> None:
    def ways(**transfer: Any) -> frozenset[str]:
        changes = {f"transfer.{name}": value for name, value in transfer.items()}
        return override(DeploymentConfig(), changes).kv_ways

    assert ways() == set(TRANSPORTS)
    assert ways(transport="grpc") == {"grpc"}
    assert ways(require=("tcp", "nixl")) == {"tcp", "nixl"}
    pem = ("tls_cert_file", "tls_key_file", "tls_ca_file")
    secured = override(DeploymentConfig(), {f"security.{name}": "a.pem" for name in pem})
    assert secured.kv_ways == PRIVATE_TRANSPORTS
    assert override(secured, {"transfer.allow_plain": True}).kv_ways == set(TRANSPORTS)


def test_who_hands_over_kv_keeps_what_heads_draft_by() -> None:
    def kept(**changes: Any) -> list[str | None]:
        config = override(DeploymentConfig(), changes)
        found = [config.engine(role).keeps_features_for for role in (Role.PREFILL, Role.DECODE)]
        return [None if each is None else each.method for each in found]

    mtp = {"method": "mtp", "features": "auto"}
    assert kept(**{"decode.speculation": mtp}) == ["mtp", "mtp"]
    assert kept(**{"decode.speculation": {"method": "mtp"}}) == [None, None]  # to be asked for
    assert kept(**{"decode.speculation": {"method": "medusa", "model": "m"}}) == [None, None]
    alone = {"prefill.replicas": 0}
    for number in (1, 4):  # it is live: what replicas keep must not follow it
        numbers = {**alone, "decode.replicas": number}
        assert kept(**{"decode.speculation": mtp, **numbers}) == [None, None]
    assert kept(**{"decode.speculation": {**mtp, "features": "on"}, **alone}) == ["mtp", "mtp"]
    for pool in ("prefill", "decode"):  # a head is on one device, and neither side keeps for none
        ranks = {f"{pool}.parallel": {"tensor": 2}}
        on = {"decode.speculation": {**mtp, "features": "on"}}
        assert kept(**on, **ranks) == [None, None]
        assert override(DeploymentConfig(), {**on, **ranks}).ignores_features
        assert not override(DeploymentConfig(), on).ignores_features
