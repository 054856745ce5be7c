"""Command-line options for settings of the configuration tree: one line of a table each.

Type, limits, default and help text are the setting's own, so an option says what `baton config
schema` says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from baton.platform.cli.options.generated_options import GeneratedOption, with_options
from baton.platform.config.docs import Setting, settings

MODEL, ENGINE, PREFILL, DECODE = "Model", "Engine", "Prefill pool", "Decode pool"
GATEWAY, TRANSFER, HEALTH, RAY, LOG = "Gateway", "Transfer", "Health", "Ray", "Log"


@dataclass(frozen=True, slots=True)
class ConfigOption:
    flag: str
    """Flag as `typer.Option` takes it: `--port`, or `--this/--no-this`."""
    panel: str
    """Heading under which `--help` lists it."""
    paths: tuple[str, ...]
    """The settings that it sets; several where both pools usually have the same value."""
    variable: str | None = None
    """An environment variable in place of the option, for secrets."""

    @property
    def parameter(self) -> str:
        return self.flag.split("/")[0].removeprefix("--").replace("-", "_")

    @property
    def setting(self) -> Setting:
        return settings()[self.paths[0]]


def _both(path: str) -> tuple[str, str]:
    return f"prefill.{path}", f"decode.{path}"


ADAPTER = ConfigOption("--adapter", MODEL, ("adapters",))
MODEL_OPTIONS = (
    ConfigOption("--dtype", MODEL, ("dtype",)),
    ConfigOption("--quantize", MODEL, ("quantize",)),
    ConfigOption("--deterministic/--no-deterministic", MODEL, ("deterministic",)),
    ConfigOption("--device", MODEL, ("device",)),
    ConfigOption("--attention-window", MODEL, ("attention_window",)),
    ConfigOption("--attention-sinks", MODEL, ("attention_sinks",)),
    ConfigOption("--load-format", MODEL, ("load_format",)),
)
ENGINE_OPTIONS = (
    ConfigOption("--max-model-len", ENGINE, _both("scheduler.max_model_len")),
    ConfigOption("--max-running", ENGINE, _both("scheduler.max_running")),
    ConfigOption("--max-batch-tokens", ENGINE, _both("scheduler.max_batch_tokens")),
    ConfigOption("--prefill-chunk", ENGINE, _both("scheduler.prefill_chunk")),
    ConfigOption("--async-scheduling", ENGINE, _both("scheduler.async_scheduling")),
    ConfigOption("--block-size", ENGINE, _both("cache.block_size")),
    ConfigOption("--kv-cache-dtype", ENGINE, _both("cache.kv_dtype")),
    ConfigOption("--num-blocks", ENGINE, _both("cache.num_blocks")),
    ConfigOption("--cache-gib", ENGINE, _both("cache.memory_gib")),
    ConfigOption("--cache-fraction", ENGINE, _both("cache.memory_fraction")),
    ConfigOption("--prefix-caching/--no-prefix-caching", ENGINE, _both("cache.prefix_caching")),
)
SPECULATION_OPTIONS = (
    ConfigOption("--speculate", ENGINE, ("decode.speculation.method",)),
    ConfigOption("--draft-model", ENGINE, ("decode.speculation.model",)),
    ConfigOption("--draft-tokens", ENGINE, ("decode.speculation.max_tokens",)),
    ConfigOption("--draft-gib", ENGINE, ("decode.speculation.memory_gib",)),
)
SERVE_OPTIONS = (
    ConfigOption("--served-model-name", MODEL, ("served_model_name",)),
    ADAPTER,
    *MODEL_OPTIONS,
    *ENGINE_OPTIONS,
    *SPECULATION_OPTIONS,
    ConfigOption("--tensor-parallel", ENGINE, _both("parallel.tensor")),
    ConfigOption("--expert-parallel", ENGINE, _both("parallel.expert")),
    ConfigOption("--redundant-experts", ENGINE, _both("parallel.redundant_experts")),
    ConfigOption("--rebalance-passes", ENGINE, _both("parallel.rebalance_passes")),
    ConfigOption("--pipeline-parallel", ENGINE, _both("parallel.pipeline")),
    ConfigOption("--micro-batch-tokens", ENGINE, _both("scheduler.micro_batch_tokens")),
    ConfigOption("--context-parallel", PREFILL, ("prefill.parallel.context",)),
    ConfigOption("--data-parallel", ENGINE, _both("parallel.data")),
    ConfigOption("--prefill", PREFILL, ("prefill.replicas",)),
    ConfigOption("--prefill-cpus", PREFILL, ("prefill.resources.num_cpus",)),
    ConfigOption("--prefill-gpus", PREFILL, ("prefill.resources.num_gpus",)),
    ConfigOption("--max-queued-tokens", PREFILL, ("prefill.max_queued_tokens",)),
    ConfigOption("--decode", DECODE, ("decode.replicas",)),
    ConfigOption("--decode-cpus", DECODE, ("decode.resources.num_cpus",)),
    ConfigOption("--decode-gpus", DECODE, ("decode.resources.num_gpus",)),
    ConfigOption("--max-open", DECODE, ("decode.max_open",)),
    ConfigOption("--host", GATEWAY, ("gateway.host",)),
    ConfigOption("--port", GATEWAY, ("gateway.port",)),
    ConfigOption("--grpc-port", GATEWAY, ("gateway.grpc_port",)),
    ConfigOption("--api-key", GATEWAY, ("gateway.api_keys",), "BATON_API_KEYS"),
    ConfigOption("--operator-key", GATEWAY, ("gateway.operator_keys",), "BATON_OPERATOR_KEYS"),
    ConfigOption("--tls-cert", GATEWAY, ("gateway.tls_cert_file",)),
    ConfigOption("--tls-key", GATEWAY, ("gateway.tls_key_file",)),
    ConfigOption("--cors-origin", GATEWAY, ("gateway.cors_origins",)),
    ConfigOption("--tool-parser", GATEWAY, ("gateway.tool_parser",)),
    ConfigOption("--reasoning-parser", GATEWAY, ("gateway.reasoning_parser",)),
    ConfigOption("--chat-template", GATEWAY, ("gateway.chat_template",)),
    ConfigOption(
        "--trust-request-chat-template/--no-trust-request-chat-template",
        GATEWAY,
        ("gateway.trust_request_chat_template",),
    ),
    ConfigOption("--max-waiting", GATEWAY, ("gateway.max_waiting",)),
    ConfigOption("--request-timeout", GATEWAY, ("gateway.request_timeout_s",)),
    ConfigOption("--short-prompt-tokens", GATEWAY, ("gateway.short_prompt_tokens",)),
    ConfigOption("--gateways", GATEWAY, ("gateway.replicas",)),
    ConfigOption("--transport", TRANSFER, ("transfer.transport",)),
    ConfigOption("--prefill-timeout", TRANSFER, ("transfer.prefill_timeout_s",)),
    ConfigOption("--drain", HEALTH, ("health.drain_s",)),
    ConfigOption("--ray-address", RAY, ("ray.address",)),
    ConfigOption("--app-name", RAY, ("ray.app_name",)),
    ConfigOption("--dashboard/--no-dashboard", RAY, ("ray.dashboard",)),
    ConfigOption("--log-format", LOG, ("log_format",)),
    ConfigOption("--log-level", LOG, ("log_level",)),
)
DEPLOY_OPTIONS = tuple(
    option for option in SERVE_OPTIONS if option.paths not in (("ray.address",), ("ray.dashboard",))
)
"""Options of `baton deploy`, which has an --address like its siblings, and starts no Ray."""
_OF_COST = (
    "--dtype", "--quantize", "--deterministic/--no-deterministic", "--device", "--block-size",
    "--kv-cache-dtype", "--micro-batch-tokens", "--speculate", "--draft-model", "--draft-gib",
)  # fmt: skip
PLAN_OPTIONS = tuple(
    option
    for option in SERVE_OPTIONS
    if option.flag in _OF_COST or option.paths[0].startswith("prefill.parallel.")
)
"""The options of how a replica is spread over ranks, and of what that costs."""

_OF_SIZE = (
    "--dtype", "--quantize", "--deterministic/--no-deterministic", "--block-size",
    "--kv-cache-dtype", "--cache-gib", "--cache-fraction",
)  # fmt: skip
SIZE_OPTIONS = tuple(option for option in SERVE_OPTIONS if option.flag in _OF_SIZE)
"""Options about a replica's memory; `baton plan size` chooses the rest."""


def with_config_options(
    table: Sequence[ConfigOption],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of `table` in the place of its parameter `changes`.

    That gets what `baton.platform.config.deployment.override` takes: values by path.
    """
    option_by_parameter = {option.parameter: option for option in table}

    def to_changes(values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            path: value
            for parameter, value in values.items()
            for path in option_by_parameter[parameter].paths
        }

    return with_options("changes", [_generated(option) for option in table], to_changes)


def _generated(option: ConfigOption) -> GeneratedOption:
    setting = option.setting
    default = setting.default
    has_default = default not in (None, "", (), frozenset())
    suffix = f" [dim]\\[default: {str(default).lower()}][/dim]" if has_default else ""
    return GeneratedOption(
        parameter=option.parameter,
        flag=option.flag,
        hint=setting.type,
        help=setting.doc + suffix,
        panel=option.panel,
        variable=option.variable,
    )
