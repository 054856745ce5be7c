"""`baton keys`: what it writes lets in who has the key."""

from __future__ import annotations

import re
import time

import pytest
from typer.testing import CliRunner

from baton.core.errors import InvalidConfig, Unauthenticated
from baton.gateway.access.api_keys import ApiKeys, known_keys
from baton.gateway.access.config import GatewayConfig
from baton.platform.cli.main import app

DAY_S = 86_400.0


def drawn(*options: str) -> tuple[str, str]:
    result = CliRunner().invoke(app, ["keys", *options])
    assert result.exit_code == 0, result.output
    found = re.search(r"key:  (\S+)\nline: ([^\n]+)\n", result.output)
    assert found is not None
    return found[1], found[2]


def test_a_drawn_key_lets_in_under_its_name_until_it_expires() -> None:
    key, line = drawn("--name", "ci", "--days", "2")
    later_s = 0.0

    def now() -> float:
        return time.time() + later_s

    keys = ApiKeys(known_keys(GatewayConfig(api_keys=frozenset({line}))), unix_time=now)
    caller = keys.check(f"Bearer {key}")
    later_s = 3 * DAY_S

    assert key not in line
    assert (caller.key, caller.is_operator) == ("ci", False)
    with pytest.raises(Unauthenticated):
        keys.check(f"Bearer {key}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sha256:12", "64 hexadecimal digits"),
        (f"sha256:{'0' * 64} expires=soon", "not a date"),
        (f"sha256:{'0' * 64} until=2027-01-01", "'until'"),
        (f"sha256:{'0' * 64} models=a++b", "empty name"),
        (f"sha256:{'0' * 64} scopes=admin", "'admin' is not for its place"),
        *((part, "looks like") for part in ("# of ci", "name=ci", "expires=2027-01-01", "a b")),
        *(
            (part, "looks like")
            for part in ("scopes=admin", "models=a", "admin", "Inference", "SHA256:12")
        ),
    ],
)
def test_a_line_that_cannot_be_is_refused_by_what_is_wrong_with_it(line: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GatewayConfig(api_keys=frozenset({line}))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--name", "my ci"), "one word"),
        (("--name", "a,b"), "one word"),
        (("--model", "a b"), "gateway.tenants.NAME.models"),
        (("--scope", "all"), "'all' is not for its place"),
    ],
)
def test_a_line_that_could_not_be_read_is_not_written(options: tuple[str, str], words: str) -> None:
    result = CliRunner().invoke(app, ["keys", *options])

    assert isinstance(result.exception, InvalidConfig) and words in str(result.exception)
    assert "key:" not in result.output


def test_the_words_of_a_line_in_a_variable_become_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line splits variables at spaces."""
    monkeypatch.setenv("BATON_OPERATOR_KEYS", f"sha256:{'0' * 64}  name=ci  scopes=admin")

    result = CliRunner().invoke(app, ["config", "show"])

    assert result.exit_code == 2 and "put the whole line into a file" in result.output


def test_a_key_and_its_hash_are_the_same_key() -> None:
    key, line = drawn()

    with pytest.raises(ValueError, match="occurs twice"):
        GatewayConfig(api_keys=frozenset({key}), operator_keys=frozenset({line}))
