"""Keys of a gateway, what strangers try with them at either of its ports, and what each is told."""

from __future__ import annotations

from typing import Any

from tests.gateway.scripted import MODEL

from baton.gateway.access.config import TenantConfig
from baton.gateway.access.key_entry import digest_of

OPERATOR, ACME, BELL = "operator-key", "acme-key", "bell-key"
EXPIRED, WATCHER, HASHED = "expired-key", "watcher-key", "hashed-key"
SCRAPER, SMALL, ELSEWHERE = "scraper-key", "small-key", "elsewhere-key"


def line(key: str, words: str = "") -> str:
    return f"sha256:{digest_of(key).hex()} {words}"


LATE = line(EXPIRED, "expires=2020-01-01")
CONFIG: dict[str, Any] = {
    "operator_keys": frozenset(
        {
            OPERATOR,
            line(WATCHER, "name=watcher scopes=admin"),
            line(SCRAPER, "name=prometheus scopes=metrics"),
        }
    ),
    "api_keys": frozenset(
        {
            line(HASHED, "name=ci expires=2999-01-01"),
            LATE,
            line(SMALL, "name=small models=small+other"),
            line(ELSEWHERE, "name=elsewhere models=org/large"),
        }
    ),
    "tenants": {
        name: TenantConfig(api_keys=frozenset({key}))
        for name, key in (("acme", ACME), ("bell", BELL))
    },
    "max_body_bytes": 2000,
    "max_header_bytes": 20_000,
    "header_timeout_s": 60.0,  # all come at once, and a busy machine takes its time
    "body_timeout_s": 0.5,
    "access_log": True,
    "admin_port": 0,
}
BODY = '{"model": "org/tiny", "prompt": [5, 6], "max_tokens": 1}'
COMPLETE = "POST /v1/completions"
DRAIN = '{"replica": "d0"}'
PAGE = {"origin": "https://elsewhere.example"}

CHUNKED = {"transfer-encoding": "chunked"}


def chunked(behind: str) -> str:
    """The body in one chunk, and what stands behind it."""
    return f"{len(BODY):x}\r\n{BODY}\r\n0\r\n{behind}\r\n"


Row = tuple[str, str | None, dict[str, str], str, int]

ROWS: dict[str, Row] = {
    "a key": (COMPLETE, ACME, {}, BODY, 200),
    "a key kept as its hash": (COMPLETE, HASHED, {}, BODY, 200),
    "an operator": (COMPLETE, OPERATOR, {}, BODY, 200),
    "no key": (COMPLETE, None, {}, BODY, 401),
    "an empty key": (COMPLETE, "", {}, BODY, 401),
    "an unknown key": (COMPLETE, "guess", {}, BODY, 401),
    "a key that has expired": (COMPLETE, EXPIRED, {}, BODY, 401),
    "a key with something behind it": (COMPLETE, f"{ACME}x", {}, BODY, 401),
    "the beginning of a key": (COMPLETE, ACME[:-1], {}, BODY, 401),
    "the line of a hashed key for a key": (COMPLETE, line(HASHED).strip(), {}, BODY, 401),
    "another scheme": (COMPLETE, None, {"authorization": f"Basic {ACME}"}, BODY, 401),
    "the key in Anthropic's header": (COMPLETE, None, {"x-api-key": ACME}, BODY, 200),
    "a wrong key in Anthropic's header": (COMPLETE, None, {"x-api-key": "wrong"}, BODY, 401),
    "the key in another header": (COMPLETE, None, {"api-key": ACME}, BODY, 401),
    "the key in the query": (f"{COMPLETE}?api_key={ACME}", None, {}, BODY, 401),
    "a key without the scope": (COMPLETE, WATCHER, {}, BODY, 403),
    "a completion with a scraper's key": (COMPLETE, SCRAPER, {}, BODY, 403),
    "a model that the key is for": (COMPLETE, SMALL, {}, BODY.replace(MODEL, "small"), 200),
    "a model that the key is not for": (COMPLETE, SMALL, {}, BODY, 403),
    "no model with a key of other models": (COMPLETE, ELSEWHERE, {}, '{"prompt": [5]}', 403),
    "a model that is not there, with such a key": (
        COMPLETE,
        ELSEWHERE,
        {},
        BODY.replace(MODEL, "org/large"),
        404,
    ),
    "a message to a model that the key is not for": (
        "POST /v1/messages",
        SMALL,
        {},
        f'{{"model": "{MODEL}", "max_tokens": 1, "messages": []}}',
        403,
    ),
    "a response of a model that the key is not for": (
        "POST /v1/responses",
        SMALL,
        {},
        f'{{"model": "{MODEL}", "input": "x"}}',
        403,
    ),
    "tokens of a model that the key is not for": (
        "POST /tokenize",
        SMALL,
        {},
        f'{{"model": "{MODEL}", "prompt": "x"}}',
        403,
    ),
    "embeddings of a model that the key is not for": (
        "POST /v1/embeddings",
        SMALL,
        {},
        f'{{"model": "{MODEL}", "input": "x"}}',
        403,
    ),
    "reranking by a model that the key is not for": (
        "POST /v1/rerank",
        SMALL,
        {},
        f'{{"model": "{MODEL}", "query": "x", "documents": ["y"]}}',
        403,
    ),
    "an estimate of a model that the key is not for": ("POST /v1/estimate", SMALL, {}, BODY, 403),
    "a name of the model that the key is not for": (f"GET /v1/models/{MODEL}", SMALL, {}, "", 403),
    "models without a key": ("GET /v1/models", None, {}, "", 401),
    "tokenising without a key": ("POST /tokenize", None, {}, "{}", 401),
    "embeddings without a key": ("POST /v1/embeddings", None, {}, "{}", 401),
    "reranking without a key": ("POST /v2/rerank", None, {}, "{}", 401),
    "scoring without a key": ("POST /score", None, {}, "{}", 401),
    "an estimate without a key": ("POST /v1/estimate", None, {}, "{}", 401),
    "a stream without a key": ("GET /v1/streams", None, {}, "", 401),
    "status": ("GET /debug/status", None, {}, "", 404),
    "status with a tenant's key": ("GET /debug/status", ACME, {}, "", 404),
    "status with an operator's key": ("GET /debug/status", OPERATOR, {}, "", 404),
    "leaks with an operator's key": ("GET /debug/leaks", WATCHER, {}, "", 404),
    "decisions with an operator's key": ("GET /debug/decisions", OPERATOR, {}, "", 404),
    "metrics with an operator's key": ("GET /metrics", OPERATOR, {}, "", 404),
    "a drain with an operator's key": ("POST /debug/drain", OPERATOR, {}, DRAIN, 404),
    "an undrain with an operator's key": ("POST /debug/undrain", OPERATOR, {}, DRAIN, 404),
    "a flip with an operator's key": ("POST /debug/flip", OPERATOR, {}, DRAIN, 404),
    "a reset of caches": ("POST /debug/reset_prefix_cache", OPERATOR, {}, DRAIN, 404),
    "a request of nobody": ("GET /v1/requests/x", ACME, {}, "", 404),
    "a request without a key": ("GET /v1/requests/x", None, {}, "", 401),
    "a response of nobody": ("GET /v1/responses/x", ACME, {}, "", 404),
    "a response without a key": ("GET /v1/responses/x", None, {}, "", 401),
    "the console, which is empty without a key": ("GET /console", None, {}, "", 200),
    "what lies beside the console's files": ("GET /console/..%2fapp.py", None, {}, "", 404),
    "an upper-case path": ("GET /DEBUG/status", ACME, {}, "", 404),
    "a doubled slash": ("GET //debug/status", ACME, {}, "", 404),
    "a path upwards": ("GET /v1/../debug/status", ACME, {}, "", 404),
    "an encoded path": ("GET /%64ebug/status", OPERATOR, {}, "", 404),
    "an encoded slash": ("GET /debug%2Fstatus", OPERATOR, {}, "", 404),
    "an encoded letter of a path that is guarded": ("GET /%761/models", None, {}, "", 401),
    "a slash at the end": ("GET /debug/status/", OPERATOR, {}, "", 404),
    "what is not there": ("GET /.env", None, {}, "", 404),
    "another method": ("DELETE /v1/completions", ACME, {}, "", 405),
    "a made-up method": ("BREW /v1/completions", ACME, {}, "", 400),
    "a body that is too large": (COMPLETE, ACME, {}, '{"prompt": "' + "x" * 3000 + '"}', 413),
    "a length that is too large": (COMPLETE, ACME, {"content-length": "9" * 12}, "", 413),
    "no JSON": (COMPLETE, ACME, {}, "{", 400),
    "deep JSON": (COMPLETE, ACME, {}, "[" * 1500, 400),
    "bytes that are no text": (COMPLETE, ACME, {}, "\udcff\udcfe", 400),
    "a request id with a line in it": (COMPLETE, ACME, {"x-request-id": "a b\tc"}, BODY, 400),
    "a request id that is too long": (COMPLETE, ACME, {"x-request-id": "a" * 500}, BODY, 400),
    "a trace that is none": (COMPLETE, ACME, {"traceparent": "00-zz-zz-99"}, BODY, 200),
    "too many headers": (COMPLETE, ACME, {f"x-{i}": "" for i in range(120)}, BODY, 400),
    "headers that are too large": (COMPLETE, ACME, {"x-a": "a" * 90_000}, BODY, 400),
    "a length twice": (COMPLETE, ACME, {"content-length": "5\r\ncontent-length: 50"}, BODY, 400),
    "a length and chunks": (
        COMPLETE,
        ACME,
        {"content-length": "5\r\ntransfer-encoding: chunked"},
        "0\r\n\r\n",
        400,
    ),
    "fields behind the body": (COMPLETE, ACME, CHUNKED, chunked("x-a: b\r\n"), 200),
    "a key behind the body": (
        COMPLETE,
        None,
        CHUNKED,
        chunked(f"authorization: Bearer {ACME}\r\n"),
        401,
    ),
    "too many fields behind the body": (COMPLETE, ACME, CHUNKED, chunked("x: y\r\n" * 120), 400),
    "a large field behind the body": (
        COMPLETE,
        ACME,
        CHUNKED,
        chunked(f"x: {'y' * 30_000}\r\n"),
        400,
    ),
    "a negative length": (COMPLETE, ACME, {"content-length": "-1"}, "", 400),
    "a folded header": (COMPLETE, ACME, {"x-a": "b\r\n c"}, BODY, 400),
    "a space before the colon": (COMPLETE, ACME, {"content-length ": "5"}, BODY, 400),
    "another tenant's priority": (COMPLETE, ACME, {}, BODY[:-1] + ', "priority": -5}', 403),
    "a body that does not come": (COMPLETE, ACME, {"content-length": "50"}, "", 408),
}

ADMIN_ROWS: dict[str, Row] = {
    "status without a key": ("GET /debug/status", None, {}, "", 401),
    "status with a tenant's key": ("GET /debug/status", ACME, {}, "", 403),
    "status with a key that has expired": ("GET /debug/status", EXPIRED, {}, "", 401),
    "status with an operator's key": ("GET /debug/status", WATCHER, {}, "", 200),
    "leaks with a tenant's key": ("GET /debug/leaks", ACME, {}, "", 403),
    "decisions with a tenant's key": ("GET /debug/decisions", ACME, {}, "", 403),
    "requests of others with a tenant's key": ("GET /v1/requests/x", ACME, {}, "", 403),
    "requests of nobody with an operator's key": ("GET /v1/requests/x", WATCHER, {}, "", 404),
    "metrics without a key": ("GET /metrics", None, {}, "", 401),
    "metrics with an operator's key": ("GET /metrics", WATCHER, {}, "", 200),
    "metrics with a scraper's key": ("GET /metrics", SCRAPER, {}, "", 200),
    "metrics with a tenant's key": ("GET /metrics", ACME, {}, "", 403),
    "status with a scraper's key": ("GET /debug/status", SCRAPER, {}, "", 403),
    "a drain with a scraper's key": ("POST /debug/drain", SCRAPER, {}, DRAIN, 403),
    "a drain without a key": ("POST /debug/drain", None, {}, DRAIN, 401),
    "a drain with a tenant's key": ("POST /debug/drain", BELL, {}, DRAIN, 403),
    "a drain with an operator's key": ("POST /debug/drain", OPERATOR, {}, DRAIN, 200),
    "a drain of nobody": ("POST /debug/drain", OPERATOR, {}, '{"replica": "x"}', 400),
    "a drain by a web page": ("POST /debug/drain", OPERATOR, PAGE, DRAIN, 403),
    "a drain by a sandboxed page": ("POST /debug/drain", OPERATOR, {"origin": "null"}, DRAIN, 403),
    "a completion": (COMPLETE, OPERATOR, {}, BODY, 404),
    "the console": ("GET /console", None, {}, "", 200),
    "a file of the console": ("GET /console/main.js", None, {}, "", 200),
    "the console by a web page": ("GET /console", None, PAGE, "", 403),
    "a path out of the console": ("GET /console/../debug/status", None, {}, "", 404),
    "what lies beside the console": ("GET /consoles", None, {}, "", 401),
    "its docs without a key": ("GET /docs", None, {}, "", 401),
    "what is not there, without a key": ("GET /.env", None, {}, "", 401),
    "health without a key": ("GET /health", None, {}, "", 401),
    "headers that are too large": ("GET /metrics", OPERATOR, {"x-a": "a" * 90_000}, "", 400),
}
