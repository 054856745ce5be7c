"""What the commands say when something is wrong, before anything is started."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pkgutil import iter_modules

import msgspec
import pytest
from typer.testing import CliRunner

from baton.core.errors import ITEM, CheckpointError, InvalidConfig, Unavailable
from baton.platform.cli import commands
from baton.platform.cli.commands.chat import grpc_target
from baton.platform.cli.main import COMMANDS, app
from baton.platform.cli.terminal.errors import INTERRUPTED, complain, errors_in_one_line

run = CliRunner().invoke
REPLICA = {
    "replica": "prefill-b6x7lxkx",
    "is_reachable": True,
    "is_ready": True,
    "num_running": 128,
    "num_waiting": 1024,
    "num_queued_tokens": 32768,
    "num_blocks": 13107,
    "num_free_blocks": 0,
    "metrics": {
        "tokens_sampled_total": 123456.0,
        "prefill_tokens_per_second": 41234.0,
        "step_times_age_seconds": 0.1,
        "slowness": 1.0,
    },
}


@contextmanager
def answering(answer: bytes, asked: list[bytes] | None = None) -> Iterator[int]:
    """A port that gives this answer, whatever it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                request = connection.recv(4096)
                if asked is not None:
                    asked.append(request)
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(60)


def http(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


def baton(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    start = "import sys; sys.argv[0] = 'baton'; from baton.platform.cli.main import app; app()"
    command = [sys.executable, "-c", start, *arguments]
    env = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


@pytest.mark.parametrize("answer", [b"\0\0\x18\x04\x1b[31m", http(b"<html>"), http(b"[]"), b""])
def test_status_of_something_else_is_told_in_one_sentence(answer: bytes) -> None:
    with answering(answer) as port:
        result = run(app, ["status", "--url", f"http://127.0.0.1:{port}"])

    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert "no gateway at" in result.output
    assert "\x1b" not in result.output


def test_status_of_a_busy_replica_fits_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    report = {"num_waiting": 3, "pools": {"prefill": [REPLICA], "decode": []}}

    with answering(http(msgspec.json.encode(report))) as port:
        result = run(app, ["status", "--url", f"http://127.0.0.1:{port}"])

    (row,) = [line for line in result.output.splitlines() if "prefill-b6x7lxkx" in line]
    assert row.split()[2:] == ["128", "1024", "32768", "13107", "of", "13107", "123456", "41234"]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("option", ["--port", "--grpc-port"])
def test_serve_refuses_a_port_in_use(host: str, option: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    other = "--grpc-port" if option == "--port" else "--port"
    with listener:
        port = str(listener.getsockname()[1])
        result = run(app, ["serve", "--host", host, option, port, other, "0"])

    assert result.exit_code == 2
    assert "Address already in use" in result.output
    assert f"with {option}" in result.output.replace("\n", " ")


@pytest.mark.parametrize("host", ["", "no-such-host.invalid"])
def test_serve_refuses_a_host_that_is_none(host: str) -> None:
    result = run(app, ["serve", "--host", host, "--port", "0", "--grpc-port", "0"])

    assert result.exit_code == 2
    assert "--host" in result.output


def test_status_shows_its_key_and_asks_for_a_missing_one() -> None:
    report = msgspec.json.encode({"num_waiting": 0, "pools": {"decode": []}})
    asked: list[bytes] = []

    with answering(http(report), asked) as port:
        shown = run(app, ["status", "--url", f"http://127.0.0.1:{port}/", "--api-key", "secret"])
    with answering(http(b"", b"401 Unauthorized")) as port:
        refused = run(app, ["status", "--url", f"http://127.0.0.1:{port}"])

    assert shown.exit_code == 0
    assert asked[0].startswith(b"GET /debug/status ")
    assert b"authorization: bearer secret" in asked[0].lower()
    assert refused.exit_code == 1
    assert "wants an API key; give it with --api-key" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["srve"], "No such command 'srve'. Did you mean 'serve'?; see `baton --help`"),
        (["serve", "--prot", "1"], "No such option: --prot"),
        (["serve", "--port", "-1"], "Invalid value for '--port'"),
        (["serve", "--dtype", "int8"], "'int8' is not one of 'auto', 'float32'"),
        (["serve", "--decode", "0"], "decode.replicas must be at least 1"),
        (["serve", "--transport", "memory"], "choose another with --transport"),
        (["serve", "--tls-cert", "c"], "tls_cert_file and tls_key_file belong together"),
        (["serve", "--tls-cert", "/no/c", "--tls-key", "/no/k"], "cannot read /no/c"),
        (["serve", "-f", "/no/file.yaml"], "cannot read /no/file.yaml: No such file"),
        (["serve", "/no/model"], "give a model folder or a Hugging Face id"),
        (["generate"], "Missing argument 'model'"),
        (["verify", "/no/model"], "give a model folder or a Hugging Face id"),
        (["config"], ""),
    ],
)
def test_mistakes_are_one_line_on_standard_error_and_exit_with_2(
    arguments: list[str], complaint: str
) -> None:
    result = run(app, arguments, prog_name="baton")

    assert result.exit_code == 2
    lines = result.stderr.splitlines()
    assert len(lines) == bool(complaint)
    assert complaint in result.stderr
    assert bool(result.stdout) != bool(complaint)  # help is shown where nothing was asked for


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidConfig("a\n  b"), 2),
        (CheckpointError("a b"), 2),
        (Unavailable("a b"), 1),
        (OSError("a b"), 1),
    ],
)
def test_what_is_raised_on_purpose_becomes_a_line_and_a_status(
    error: Exception, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Exception) as caught, errors_in_one_line("baton test"):
        raise error

    assert getattr(caught.value, "exit_code", None) == status
    assert capsys.readouterr().err == "baton test: a b\n"


def test_each_of_several_mistakes_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    complain("baton test", ITEM.join(("2  mistakes", "one\n  of them", "another")))

    assert capsys.readouterr().err == "baton test: 2 mistakes\n- one of them\n- another\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "gatway: {port: 1}",
            "field `gatway`; did you mean `gateway`?; `baton config schema` says what it may hold",
        ),
        ("gateway: [", "not YAML: while parsing"),
    ],
)
def test_a_wrong_file_is_named_with_its_remedy(text: str, complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "baton.yaml"
    file.write_text(text)

    result = run(app, ["serve", "-f", str(file)], prog_name="baton")

    assert result.exit_code == 2
    assert str(file) in result.stderr
    assert complaint in result.stderr
    assert "byte string" not in result.stderr


def test_the_version_can_be_asked_for() -> None:
    result = run(app, ["--version"])

    assert result.exit_code == 0
    assert result.stdout.startswith("baton ")


def test_from_the_shell_the_exit_status_is_the_same(tmp_path: Path) -> None:
    wrong, fine = baton("config", "show", "--port", "x"), baton("config", "show")

    assert (wrong.returncode, fine.returncode) == (2, 0)
    assert wrong.stderr.startswith("baton config show: Invalid value for '--port'")
    assert len(wrong.stderr.splitlines()) == 1
    assert INTERRUPTED == 130


@pytest.mark.parametrize(
    "arguments", [["--help"], ["serve", "--help"], ["config", "show"], ["generate", "--help"]]
)
def test_what_needs_no_model_imports_neither_torch_nor_ray(arguments: list[str]) -> None:
    script = (
        "import sys\n"
        "from baton.platform.cli.main import app\n"
        f"try: app({arguments!r})\n"
        "except SystemExit as end: assert end.code == 0\n"
        "print('imported:', *{name.split('.')[0] for name in sys.modules})"
    )

    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    imported = set(found.stdout.splitlines()[-1].split()[1:])
    assert "baton" in imported
    assert imported & {"torch", "ray", "transformers", "huggingface_hub", "tokenizers"} == set()


def test_a_command_is_imported_when_it_is_called_and_no_other_with_it() -> None:
    script = (
        "import sys\n"
        "from baton.platform.cli.main import COMMANDS, app\n"
        "try: app(['serve', '--help'])\n"
        "except SystemExit: pass\n"
        "print('imported:', *(name for name in COMMANDS if f'{PACKAGE}.{name}' in sys.modules))"
    ).replace("{PACKAGE}", "baton.platform.cli.commands")

    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert found.stdout.splitlines()[-1] == "imported: serve"


def test_every_module_of_commands_is_one_that_help_names() -> None:
    assert sorted(COMMANDS) == sorted(module.name for module in iter_modules(commands.__path__))


def test_the_shell_completes_commands_options_and_models(tmp_path: Path) -> None:
    (tmp_path / "models--org--name").mkdir()

    def completed(words: str) -> list[str]:
        position = str(len(words.split(" ")) - 1)
        variables = {"COMP_WORDS": words, "COMP_CWORD": position, "HF_HUB_CACHE": str(tmp_path)}
        found = baton(_BATON_COMPLETE="complete_bash", **variables)
        return found.stdout.split()

    assert completed("baton ser") == ["serve"]
    assert completed("baton serve org/") == ["org/name"]
    assert "--decode-gpus" in completed("baton serve --dec")


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("there:9001", ("there:9001", False)),
        ("there", ("there:8001", False)),
        ("http://there:9001/", ("there:9001", False)),
        ("https://there", ("there:8001", True)),
        ("[::1]:9001", ("[::1]:9001", False)),
        ("dns:///there:9001", ("dns:///there:9001", False)),
        ("unix:/run/x.sock", ("unix:/run/x.sock", False)),
        ("dns:9001", ("dns:9001", False)),
    ],
)
def test_a_conversation_is_had_at_an_address_or_a_url(url: str, target: tuple[str, bool]) -> None:
    assert grpc_target(url) == target


def test_help_breaks_its_lines_where_the_terminal_ends_and_not_where_the_code_does() -> None:
    wide = run(app, ["verify", "--help"], env={"COLUMNS": "400", "TERMINAL_WIDTH": "400"}).output

    assert "Every KV transport is tried: cold, on a prefix hit, in chunks" in wide


def test_a_model_that_plan_size_does_not_find_is_told_with_the_shapes_that_it_knows() -> None:
    result = run(app, ["plan", "size", "llama-3-70b"])

    assert result.exit_code == 2
    assert "no folder llama-3-70b" in result.stderr and "llama-3.3-70b" in result.stderr
