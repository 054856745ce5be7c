"""The gateway's branch of the configuration tree."""

from __future__ import annotations

import ipaddress
from collections.abc import Set
from typing import Annotated, Literal

import msgspec

from baton.core.config_node import ConfigNode, Count, Fraction, Port, Seconds
from baton.gateway.access.batch_config import BatchConfig
from baton.gateway.access.key_entry import NAMED, SCOPES, TENANT_SCOPES, read_entry
from baton.gateway.storage.config import StorageConfig
from baton.router.defaults import DEFAULT_POLICY, LOCAL_PREFILL_TOKENS, POLICY_NAMES

MEBIBYTE = 1 << 20

Priority = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]

Weight = Annotated[float, msgspec.Meta(gt=0, le=1000)]


class SloClassConfig(ConfigNode, frozen=True, kw_only=True):
    """The objective of a class of requests. The router serves the most urgent first and avoids
    replicas that would be late; no request is refused because of it."""

    ttft_s: Seconds | None = None
    """Seconds from a request to its first token. Empty: any."""
    itl_s: Seconds | None = None
    """Mean seconds from one output token to the next. Empty: any."""


class TenantConfig(ConfigNode, frozen=True, kw_only=True):
    """One tenant: its requests share cached KV with each other and with nobody else."""

    api_keys: frozenset[str]
    """Its own keys; a key belongs to one tenant."""
    models: frozenset[str] = frozenset()
    """Names of the models that its keys are for: `served_model_name`, which stands for all names
    of a model, or some of its `model_aliases`; and of `adapters`, each of which is named for
    itself. Other models are refused (403). Empty: any."""
    kv_share: Fraction | None = None
    """Share of each replica's KV blocks that is reserved for its requests and cache, and that they
    may not exceed. Empty: no reservation; it uses the blocks that the others' shares leave."""
    min_priority: Priority | None = None
    """The smallest `priority` that its requests may ask for. Empty: gateway.min_priority. From 0
    on, headers cannot give them a tighter objective than their class has."""
    weight: Weight = 1.0
    """While several tenants wait, each is served tokens in proportion to its weight."""
    requests_per_minute: Count | None = None
    """Requests beyond this rate are refused (429) with a time to retry. Empty: no limit."""
    requests_per_second: Count | None = None
    """As `requests_per_minute`, over one second: limits bursts. Empty: no limit."""
    tokens_per_minute: Count | None = None
    """Tokens of prompts and outputs; outputs are counted as they come. Empty: no limit."""
    tokens_per_second: Count | None = None
    """As `tokens_per_minute`, over one second: limits bursts. Empty: no limit."""
    max_wait_s: Seconds | None = None
    """A request that would wait longer for a place is refused (429). Empty: gateway.max_wait_s."""
    slo_class: str = ""
    """The SLO class of its requests that name none. Empty: gateway.slo_class."""
    request_timeout_s: Seconds | None = None
    """The most seconds from the arrival of a request to its last token. Empty:
    gateway.request_timeout_s."""

    def __post_init__(self) -> None:
        if not self.api_keys:
            raise ValueError("a tenant needs at least one key in api_keys")
        if "" in self.models:
            raise ValueError(
                "a tenant's models has an empty name; remove it, or leave models out to allow any "
                "model"
            )


class GatewayConfig(ConfigNode, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    """The address on which both public ports listen. `0.0.0.0` lets other machines in."""
    port: Port = 8000
    """The port of the OpenAI-compatible HTTP API."""
    grpc_port: Port = 8001
    """The public gRPC service, `baton.v1.Inference`."""
    admin_host: str = "127.0.0.1"
    """The address on which the admin port listens. Loopback keeps other machines out; any other
    address needs `operator_keys`."""
    admin_port: Port | None = 8002
    """The operators' port: drain, /debug/*, /metrics, requests of all tenants. Each of several
    gateways on a machine takes the first free one of 16 ports from this one on; 0 lets the
    operating system choose. The log names the port. Null: no admin port."""
    max_body_bytes: Count = 16 * MEBIBYTE
    """Larger requests are refused (413) without being read."""
    request_timeout_s: Seconds = 600.0
    """The most seconds from the arrival of a request to its last token."""
    header_timeout_s: Seconds = 10.0
    """The most seconds from the opening of a connection, or the first byte of a later request, to
    the end of the headers; then the connection is closed (408)."""
    max_header_bytes: Count = 64 << 10
    """A request whose headers are larger is refused (400), and the connection closed."""
    max_headers: Count = 100
    """A request with more headers is refused (400), and the connection closed."""
    max_connections: Count = 4096
    """Open connections, for HTTP and for gRPC each; fewer if the process may not open as many
    files. Further connections are answered with 503, or closed."""
    max_connections_per_address: Count | None = None
    """Open HTTP connections from one client address. Empty: no limit, because clients behind a load
    balancer or a NAT share one."""
    max_streams_per_connection: Count = 1024
    """Concurrent calls on one gRPC connection; the client's library queues further ones."""
    body_timeout_s: Seconds = 20.0
    """Seconds for a request's body to arrive, plus one for every `min_body_bytes_per_s` bytes that
    have arrived; later it is refused (408)."""
    min_body_bytes_per_s: Count = 4096
    """The least rate at which a client must send a large body, or read an answer. No body may take
    longer than `request_timeout_s`."""
    unread_timeout_s: Seconds = 30.0
    """A client that has unread output and reads less than `min_body_bytes_per_s` for so long is
    disconnected. The output buffered for it is bounded."""
    keep_alive_s: Count = 75
    """Seconds that an idle connection is kept: longer than load balancers keep theirs, so that they
    never use one that was just closed."""
    model_aliases: tuple[str, ...] = ()
    """Other names that clients may use for the model. Answers and metrics always have
    `served_model_name`."""
    api_keys: frozenset[str] = frozenset()
    """Keys accepted as `Authorization: Bearer ...` or `x-api-key: ...`; without any, every caller
    is let in. Like other secrets, they may be `file:/path` or `env:NAME`, read where the gateway
    runs."""
    operator_keys: frozenset[str] = frozenset()
    """Keys for `admin_port`; their requests may ask for any `priority`."""
    min_priority: Priority = 0
    """The smallest `priority` that requests with a key may ask for: smaller comes first. From 0 on,
    headers cannot give them a tighter objective than their class has. Operators, and everybody
    where no keys are configured, may ask for any."""
    tenants: dict[str, TenantConfig] = msgspec.field(default_factory=dict)
    """Tenants by name: clients with keys of their own, whose cached KV nobody else can find."""
    cache_secret: str = ""
    """The secret that salts the hashes of tenants' cached KV. Empty: derived from the Ray cluster's
    random id, so tenants find nothing in KV tiers that outlive the cluster."""
    max_waiting: Count = 1024
    """Requests that may wait here for a place; more are refused (429)."""
    max_wait_s: Seconds | None = None
    """A request that would wait longer for a place is refused (429), at once if that can be
    foreseen. Empty: it waits until its time limit."""
    slo_classes: dict[str, SloClassConfig] = msgspec.field(default_factory=dict)
    """Service level objectives by name; the header `x-gateway-inference-objective` names one.
    Unknown names are ignored, since gateways in front of this one may send their own."""
    slo_class: str = ""
    """The class of requests that name none. Empty: they have no objective."""
    policy: str = DEFAULT_POLICY
    """The routing policy: how the replica that computes a prompt is chosen; docs/router.md lists
    them."""
    kept_decisions: Annotated[int, msgspec.Meta(ge=0)] = 2048
    """Recent requests, of the last hour, whose placement decisions are kept for `baton explain` and
    `baton replay`."""
    short_prompt_tokens: Annotated[int, msgspec.Meta(ge=0)] = LOCAL_PREFILL_TOKENS
    """Prompts with at most this many uncached tokens are computed by the decode replica itself, if
    delaying its decodes costs no more than a handoff. 0: decode replicas only compute prompts that
    no prefill replica can, or that would wait clearly longer there."""
    max_choices: Count = 128
    """Completions of one request: its prompts times `n` or `best_of`."""
    tool_parser: Literal[
        "auto",
        "none",
        "generic",
        "hermes",
        "qwen3_coder",
        "glm",
        "llama3",
        "llama4",
        "deepseek",
        "deepseek_v32",
        "mistral",
        "kimi",
        "phi",
        "gemma",
        "harmony",
    ] = "auto"
    """The model's tool-call format. `auto` detects it from the chat template, else takes `generic`:
    tools are described in the system message, with calls in Hermes' format. `none`: only calls that
    a request forces."""
    tool_schemas: Literal["hold", "strict"] = "hold"
    """Whether calls under `tool_choice: auto` are constrained to their tools' schemas. `hold`: by a
    grammar, from the beginning of a call on, if the format allows it; while such a request runs, a
    GPU waits for the host between steps. `strict`: only for tools with `strict: true`, and for the
    format `generic`."""
    reasoning_parser: Literal["auto", "none", "think", "harmony"] = "auto"
    """The model's reasoning format. `auto` detects it from the chat template."""
    chat_template: str = ""
    """A Jinja file on the gateways' machines, or the template itself, in place of all of the
    model's chat templates. Empty: those that come with the model."""
    trust_request_chat_template: bool = False
    """Allow requests to bring their own template (`chat_template`), as in vLLM. It runs in the same
    sandbox as the model's, for 2 s of CPU time at most, during which the gateway serves no other
    request."""
    reranker: Literal["auto", "qwen3"] = "auto"
    """How pairs of texts are scored. `auto`: by the model's files. `qwen3`: like Qwen3-Reranker,
    whose first checkpoints lack these settings: by the logits of yes and no after its authors'
    prompt.
    """
    unknown_fields: Literal["ignore", "refuse"] = "ignore"
    """Fields of a request's body that Baton does not know, or that do nothing on this model.
    `ignore`: the header `x-baton-ignored` names them; fields that would change the output are
    always refused."""
    hosted_tools: Literal["refuse", "ignore"] = "refuse"
    """Tools that only run at OpenAI's or Anthropic's own servers, such as `web_search`. `ignore`:
    they are left out, and the header `x-baton-ignored` names them."""
    resume_window_s: Seconds = 60.0
    """Seconds that a resumable stream continues, and is kept, without a client."""
    max_resumable_bytes: Count = 64 * MEBIBYTE
    """Bytes of all resumable streams together; a stream that does not fit is refused (429)."""
    access_log: bool = False
    """Log a line for every call: method, path, status, seconds, request id, tenant and the key's
    name; never prompts or outputs."""
    console: bool = True
    """Serve the page `/console`: a playground, requests explained, replicas. The page needs no key,
    like `/docs`; the data it shows needs the key that its user enters."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose web pages may call the HTTP API (CORS); `*` allows any. Empty: none."""
    tls_cert_file: str = ""
    """PEM certificate chain for both ports. Empty: no encryption."""
    tls_key_file: str = ""
    """PEM private key of the certificate."""
    storage: StorageConfig = StorageConfig()
    """What clients let Baton keep for them: responses, files, batches."""
    batches: BatchConfig = BatchConfig()
    """Requests in files, answered when nobody else needs the replicas."""

    def __post_init__(self) -> None:
        if self.policy not in POLICY_NAMES:
            raise ValueError(f"policy {self.policy!r}: give one of {', '.join(POLICY_NAMES)}")
        for alias in self.model_aliases:
            if not alias or alias != alias.strip() or not alias.isprintable():
                raise ValueError(
                    f"model_aliases has {alias!r}: give names that are not empty, without spaces "
                    "around them, line breaks or control characters"
                )
        self._check_keys()
        self._check_shares()
        self._check_classes()
        if not self.operator_keys and not is_loopback(self.admin_host):
            raise ValueError(
                f"admin_host {self.admin_host!r} would let other machines operate the deployment "
                "without a key; set operator_keys, or leave it at 127.0.0.1"
            )
        if bool(self.tls_cert_file) != bool(self.tls_key_file):
            raise ValueError("tls_cert_file and tls_key_file belong together: set both, or none")

    @property
    def needs_key(self) -> bool:
        return bool(self.api_keys or self.operator_keys or self.tenants)

    def body_limit_s(self, num_bytes: int) -> float:
        """Seconds from the beginning of a body within which its next bytes must arrive, once
        `num_bytes` have."""
        earned_s = num_bytes / self.min_body_bytes_per_s
        return min(self.body_timeout_s + earned_s, self.request_timeout_s)

    @property
    def kv_shares(self) -> dict[str, float]:
        """KV shares by tenant, for the tenants that have one."""
        return {
            name: tenant.kv_share
            for name, tenant in self.tenants.items()
            if tenant.kv_share is not None
        }

    @property
    def weights(self) -> dict[str, float]:
        """Scheduling weights by tenant."""
        return {name: tenant.weight for name, tenant in self.tenants.items()}

    def _check_keys(self) -> None:
        keys_by_field = {"api_keys": self.api_keys, "operator_keys": self.operator_keys}
        for name, tenant in self.tenants.items():
            keys_by_field[f"tenants.{name}.api_keys"] = tenant.api_keys
        seen: set[bytes | str] = set()
        for field, keys in keys_by_field.items():
            scopes = SCOPES if field == "operator_keys" else TENANT_SCOPES
            for key in keys:
                known = key if key.startswith(NAMED) else _digest_of(key, scopes, field)
                if known in seen:
                    raise ValueError(
                        f"{field}: a key occurs twice; list it once, in one tenant, in api_keys or "
                        "in operator_keys"
                    )
                seen.add(known)
        if "" in self.tenants:
            raise ValueError("tenants has an entry with an empty name; give it one")

    def _check_classes(self) -> None:
        if "" in self.slo_classes:
            raise ValueError("slo_classes has an entry with an empty name; give it one")
        of_tenants = {
            f"tenants.{name}.slo_class": tenant.slo_class for name, tenant in self.tenants.items()
        }
        for field, name in {"slo_class": self.slo_class, **of_tenants}.items():
            if name and name not in self.slo_classes:
                known = ", ".join(self.slo_classes) or "none"
                raise ValueError(
                    f"{field} {name!r} is not one of slo_classes, which has {known}; define it "
                    "there, or name another"
                )

    def _check_shares(self) -> None:
        total = sum(self.kv_shares.values())
        if total > 1:
            raise ValueError(f"the tenants' kv_share add up to {total:g}; lower them to 1 in all")
        has_others = bool(self.api_keys or self.operator_keys) or len(self.kv_shares) < len(
            self.tenants
        )
        if total == 1 and has_others:
            raise ValueError(
                "the tenants' kv_share add up to 1, which leaves no blocks for the other keys; "
                "lower one"
            )


def _digest_of(key: str, scopes: Set[str], field: str) -> bytes:
    """Raises ValueError, which names the field and not the key."""
    if not key:
        raise ValueError(f"{field} has an empty key; remove it")
    try:
        return read_entry(key, scopes).digest
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None


def is_loopback(host: str) -> bool:
    """Whether the address is a loopback address, judged by its text alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
