"""What cannot come up is refused before anything is started, with what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from tests.platform.cli.wrong_starts import (
    LLAMA_70B,
    WRONG_STARTS,
    WrongStart,
    changed,
    foreign_adapter,
)
from tests.tiny_checkpoints import FAMILIES, make_llama
from typer.testing import CliRunner

from baton.core.errors import InvalidConfig
from baton.platform.cli.commands import serve as serve_command
from baton.platform.cli.main import app
from baton.platform.cli.runs.judged_starts import JudgedStart, Needs
from baton.platform.cli.runs.out_of_memory import OutOfMemory
from baton.platform.cli.runs.start_check import Question, StartCheck, Verdict, judge
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.doctor.process_room import check_process_room
from baton.platform.machine.child_processes import replicas_below
from baton.platform.machine.memory import MemoryFacts
from baton.platform.models.model_folder import find_model

GIB = 1 << 30
DEMO = find_model("demo")


def having(gib: float, *, num_killed: int = 0) -> MemoryFacts:
    """What a container has whose limit leaves so much."""
    return MemoryFacts(
        total=256 * GIB, available=256 * GIB, limit=int(gib * GIB), num_killed=num_killed
    )


def verdict(folder: Path, memory: MemoryFacts, **changes: object) -> Verdict:
    config = override(DeploymentConfig(), {k.replace("__", "."): v for k, v in changes.items()})
    question = Question(config=config, folder=str(folder), memory=memory)
    on_the_way = msgspec.json.decode(msgspec.json.encode(question), type=Question)
    return judge(on_the_way)


def by_name(starts: tuple[WrongStart, ...]) -> list[object]:
    return [pytest.param(start, id=start.name) for start in starts]


def on_free_ports(start: WrongStart, folder: Path) -> list[str]:
    """The words of a start which finds its ports free, whatever else runs on this machine."""
    words = ["serve", *start.words(folder)]
    return words if "-f" in words else [*words, "--port", "0", "--grpc-port", "0"]


@pytest.mark.parametrize(
    "start", by_name(tuple(start for start in WRONG_STARTS if not start.needs_model))
)
def test_what_files_tell_is_told_at_once(start: WrongStart, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, on_free_ports(start, tmp_path))

    assert result.exit_code == 2
    assert start.complaint in result.stderr
    assert "Ray" not in result.output


def test_an_adapter_of_another_model_is_refused_before_the_start(tmp_path: Path) -> None:
    _, where = foreign_adapter(tmp_path)

    found = verdict(DEMO, having(64), adapters={"sql": where.removeprefix("sql=")})

    assert found.is_of_model
    assert found.refusal.startswith("adapter `sql`: model.layers.99.self_attn.q_proj: the model")


@pytest.mark.wide
@pytest.mark.parametrize("start", by_name(WRONG_STARTS))
def test_ray_is_not_started_for_what_cannot_come_up(start: WrongStart, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "baton.platform.cli.main", *on_free_ports(start, tmp_path)]

    found = subprocess.run(words, capture_output=True, text=True, env=os.environ)

    assert found.returncode == 2
    assert start.complaint in found.stderr
    assert "starting Ray" not in found.stdout
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize(
    "start", by_name(tuple(start for start in WRONG_STARTS if "tensor" in start.name))
)
def test_tensors_are_held_to_the_model_by_their_headers(start: WrongStart, tmp_path: Path) -> None:
    found = verdict(Path(start.words(tmp_path)[0]), having(8))

    assert found.is_of_model
    assert start.complaint in found.refusal


@pytest.mark.parametrize(
    ("gib", "changes", "remedy"),
    [
        (20, {}, "quantize the weights (--quantize int8): 14."),
        (10, {"quantize": "int8"}, "start fewer replicas (one, --prefill 0 --decode 1): 7."),
        (5, {}, "quantize it (--prefill 0 --decode 1 --quantize int4): "),
        (1, {}, "not even one replica with quantized weights fits: use a smaller model"),
    ],
)
def test_a_model_without_room_is_refused_with_the_least_change_that_fits(
    gib: int, changes: dict[str, object], remedy: str, tmp_path: Path
) -> None:
    folder = Path(changed(tmp_path, **{**LLAMA_70B, "num_hidden_layers": 8})[0])

    found = verdict(folder, having(gib), load_format="dummy", dtype="bfloat16", **changes)

    assert not found.is_of_model
    assert f"{gib:.1f} GiB of {gib:.1f} GiB left in this control group" in found.refusal
    assert remedy in found.refusal


def test_caches_that_cannot_grow_full_are_a_warning_and_others_none() -> None:
    enough = verdict(DEMO, having(8))
    assert enough == Verdict(needs=enough.needs)
    assert enough.needs is not None and enough.needs.fit(having(8))

    found = verdict(DEMO, having(2))

    assert not found.refusal and found.needs is None
    assert "caches may grow to 2.0 GiB" in found.warning


def test_what_others_may_give_back_is_no_reason_to_refuse_and_what_is_unknown_none_to_warn() -> (
    None
):
    swapping = MemoryFacts(total=2 * GIB, available=GIB // 2, swap=30 * GIB)

    found = verdict(DEMO, swapping)

    assert not found.refusal
    assert "unless others give some back" in found.warning
    unknown = verdict(DEMO, MemoryFacts(total=0, available=0))
    assert not unknown.refusal and not unknown.warning


def test_a_checkpoint_that_may_stay_quantised_is_refused_by_what_its_files_have(
    tmp_path: Path,
) -> None:
    stored = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {
        "all": {"targets": ["Linear"], "weights": {
            "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128,
        }},
    }}  # fmt: skip
    sizes = {**LLAMA_70B, "num_hidden_layers": 8, "quantization_config": stored}
    folder = Path(changed(tmp_path, **sizes)[0])
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(4 * GIB)  # without taking them
    as_stored = {"load_format": "dummy", "dtype": "bfloat16"}

    assert not verdict(folder, having(10), **as_stored).refusal
    found = verdict(folder, having(8), **as_stored).refusal
    assert "start fewer replicas (one, --prefill 0 --decode 1)" in found
    assert "--quantize" not in found


def test_many_replicas_of_a_small_model_want_room_for_their_processes() -> None:
    found = verdict(DEMO, having(20), decode__replicas=100)

    assert "need 1.8 GiB and the processes 24.5 GiB" in found.refusal


def test_the_memory_of_a_cluster_that_is_joined_is_not_this_machines() -> None:
    assert verdict(DEMO, having(0.1), ray__address="10.0.0.1:6379") == Verdict(needs=Needs())


SETTINGS: tuple[dict[str, object], ...] = (
    {"quantize": "int4", "decode.speculation.method": "mtp"},
    {
        "load_format": "dummy",
        "prefill.parallel.tensor": 2,
        "decode.parallel.tensor": 2,
        "decode.parallel.pipeline": 2,
    },
)
BY_SHAPES = """
import sys
import msgspec
from baton.platform.cli.runs.start_check import Question, judge
from baton.platform.doctor import torch_of_shapes

torch_of_shapes.install()
questions = msgspec.json.decode(sys.stdin.buffer.read(), type=list[Question])
sys.stdout.buffer.write(msgspec.json.encode([judge(each) for each in questions]))
"""


def test_shapes_tell_of_all_families_what_torch_tells(tmp_path: Path) -> None:
    folders = [make(tmp_path / name) for name, make in FAMILIES.items()]
    misfit = changed(tmp_path, intermediate_size=648)[0]
    questions = [
        Question(
            config=override(DeploymentConfig(), changes), folder=str(folder), memory=having(64)
        )
        for folder in (*folders, misfit)
        for changes in SETTINGS
    ]

    told = subprocess.run(
        [sys.executable, "-c", BY_SHAPES],
        input=msgspec.json.encode(questions),
        capture_output=True,
        check=True,
    )

    assert msgspec.json.decode(told.stdout, type=list[Verdict]) == list(map(judge, questions))


@pytest.mark.wide
def test_what_shapes_do_not_tell_is_judged_with_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BATON_CACHE", str(tmp_path / "cache"))
    folder = make_llama(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    config = DeploymentConfig()

    with StartCheck() as check:
        check.ask(config, folder, having(8))
        assert check.warning() == ""

    assert JudgedStart(config, folder).is_known(having(8))  # only of what was judged


BEGUN_AGAIN = """
import sys
import tempfile
from baton.platform.cli.runs import start_check

tempfile.tempdir = "/nowhere"
echo = "import sys; print(sys.argv[1:], sys.stdin.read())"
start_check.COMMAND = (sys.executable, "-c", echo)
start_check._restart_with_torch(b"the question")
"""


def test_it_is_begun_again_with_torch_also_where_no_file_can_be_written() -> None:
    found = subprocess.run([sys.executable, "-c", BEGUN_AGAIN], capture_output=True, text=True)

    assert found.stdout == "['--with-torch'] the question\n", found.stderr


@pytest.mark.wide
def test_a_start_that_is_only_checked_is_remembered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As `make serve` does when it has set up, so that the first start need not."""
    monkeypatch.setenv("BATON_CACHE", str(tmp_path))
    monkeypatch.setattr(serve_command, "_check_ports", lambda config: None)
    start = JudgedStart(DeploymentConfig(), DEMO)
    assert not start.is_known(having(64))

    result = CliRunner().invoke(app, ["serve", "--check"])

    assert (result.exit_code, result.output) == (0, "demo would start\n")
    assert start.is_known(having(64))


def test_a_check_that_dies_refuses_nothing_and_is_made_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BATON_CACHE", str(tmp_path))
    for _ in range(2):
        with StartCheck() as check:
            check.ask(DeploymentConfig(), DEMO, having(8))
            assert not check.is_known and check._process is not None
            check._process.kill()

            assert check.warning() == ""


def test_what_was_judged_well_is_judged_again_once_it_has_changed_or_has_no_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BATON_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    config = DeploymentConfig()
    start = JudgedStart(config, folder)
    assert not start.is_known(having(8))

    start.keep(Needs(start_bytes=GIB, full_bytes=4 * GIB))

    assert JudgedStart(config, folder).is_known(having(8))
    elsewhere = override(config, {"gateway.port": 9000})
    assert JudgedStart(elsewhere, folder).is_known(having(8))
    assert not JudgedStart(config, folder).is_known(having(2))
    more = override(config, {"decode.replicas": 2})
    assert not JudgedStart(more, folder).is_known(having(8))
    (folder / "config.json").write_text("{ }")
    assert not JudgedStart(config, folder).is_known(having(8))


def test_who_was_killed_for_want_of_memory_is_told_once_with_the_numbers() -> None:
    now = [having(4, num_killed=3)]
    out_of_memory = OutOfMemory(read=lambda: now[0])
    assert out_of_memory.news() == ""

    now[0] = having(4, num_killed=4)
    assert "the kernel has ended a process" in out_of_memory.news()
    now[0] = having(4, num_killed=6)

    told = out_of_memory.news()
    assert "the kernel has ended 2 processes, and now there are 4.0 GiB of 4.0 GiB left" in told
    assert "quantize the weights (--quantize int8), start fewer replicas" in told
    assert out_of_memory.news() == ""


def test_the_replica_that_was_killed_is_named() -> None:
    now, alive = [having(4)], {7: "prefill", 8: "decode", 9: "decode"}
    out_of_memory = OutOfMemory(read=lambda: now[0], replicas=lambda: dict(alive))
    del alive[8]
    now[0] = having(4, num_killed=1)

    assert "the kernel has ended a process (decode, process 8), and" in out_of_memory.news()

    alive.clear()
    now[0] = having(4, num_killed=2)
    told = "a process (among those gone: prefill, process 7; decode, process 9), and"
    assert told in out_of_memory.news()


def test_replicas_are_known_by_what_ray_calls_them() -> None:
    title = "ray::ServeReplica:default:Decode"
    with subprocess.Popen(["bash", "-c", f"exec -a {title} sleep 60"]) as process:
        # The shell's own command line names the title, too, until it has become the other.
        while not Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(title.encode()):
            assert process.poll() is None
        found = replicas_below(os.getpid())
        process.kill()

    assert found == {process.pid: "decode"}


def test_processes_without_room_are_refused_where_the_whole_check_would_refuse_them() -> None:
    for decode, fits in ((4, True), (5, False)):
        config = override(DeploymentConfig(), {"decode.replicas": decode})
        memory = having(2.0)
        if fits:
            check_process_room(config, memory)
            continue
        with pytest.raises(InvalidConfig, match=r"need 2.2 GiB .* at most 5 processes"):
            check_process_room(config, memory)
        assert "too little memory" in verdict(DEMO, memory, decode__replicas=decode).refusal
