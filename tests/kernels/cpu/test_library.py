"""Libraries built, found again, damaged, and found by those who cannot build."""

from __future__ import annotations

import ctypes
import io
import os
import shlex
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from baton.core.clock import ManualClock
from baton.kernels.cpu import __main__ as ahead_of_time
from baton.kernels.cpu import build, library
from baton.kernels.cpu.library import cache_folder, find_compiler, find_or_build
from baton.kernels.cpu.progress import BuildProgress, progress_on

COMPILER = find_compiler()
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no compiler here")
PORTABLE = build.supported_targets()[1:]
of_a_known_kind = pytest.mark.skipif(not PORTABLE, reason="no kinds of this CPU are known")


@pytest.fixture
def prebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a wheel brings: a library for the best kind of CPU that this one is of."""
    folder = tmp_path / "prebuilt"
    folder.mkdir()
    assert COMPILER is not None
    build.build(folder, PORTABLE[0], COMPILER, silent)
    monkeypatch.setattr(library, "PREBUILT", folder)
    return folder


@pytest.fixture(autouse=True)
def one_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Instead of all operators: what they do does not matter here."""
    source = tmp_path / "source" / "answer.cpp"
    source.parent.mkdir()
    source.write_text('extern "C" int answer() { return 42; }')
    monkeypatch.setattr(build, "SOURCES", source.parent)
    return source


def answer(found: ctypes.CDLL | None) -> int:
    assert found is not None
    return int(found.answer())


def silent(num_compiled: int, num_sources: int) -> None:
    """Who is not interested in how far a build is."""


def libraries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.so"))


def test_what_was_built_is_found_again(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    assert answer(find_or_build(folder, COMPILER)) == 42
    (kept,) = libraries(folder)
    made = kept.stat().st_mtime_ns

    assert answer(find_or_build(folder, COMPILER)) == 42

    assert kept.stat().st_mtime_ns == made


def test_other_sources_make_another_library(tmp_path: Path, one_source: Path) -> None:
    folder = tmp_path / "cache"
    find_or_build(folder, COMPILER)
    one_source.write_text('extern "C" int answer() { return 43; }')

    assert answer(find_or_build(folder, COMPILER)) == 43
    assert len(libraries(folder)) == 2


def test_sources_that_change_during_a_build_are_those_of_another_library(
    tmp_path: Path, one_source: Path
) -> None:
    assert COMPILER is not None
    before, after = tmp_path / "before.cpp", tmp_path / "after.cpp"
    before.write_text(one_source.read_text())
    after.write_text('extern "C" int answer() { return 43; }')
    script = tmp_path / "compiler"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *" -c "*) cp {after} {one_source};; esac\n'
        f'exec {shlex.join(COMPILER)} "$@"\n'
    )
    script.chmod(0o755)
    compiler = (str(script),)

    made = build.build(tmp_path, build.NATIVE, compiler, silent)

    assert one_source.read_text() == after.read_text()
    assert answer(ctypes.CDLL(str(made))) == 42
    assert made not in build.find(tmp_path, build.NATIVE, compiler)
    one_source.write_text(before.read_text())
    assert made in build.find(tmp_path, build.NATIVE, compiler)


@pytest.mark.parametrize("kept", [0, 10, -1])
def test_a_damaged_library_is_built_anew(
    kept: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    assert COMPILER is not None
    made = build.build(folder, build.NATIVE, COMPILER, silent)
    whole = made.read_bytes()
    made.write_bytes(whole[:kept])

    assert answer(find_or_build(folder, COMPILER)) == 42

    assert "damaged" in caplog.text
    assert build.is_whole(made)


def test_a_damaged_object_is_compiled_anew(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    assert answer(find_or_build(folder, COMPILER)) == 42
    (made,) = libraries(folder)
    made.unlink()
    (compiled,) = folder.glob("*.o")
    compiled.write_bytes(compiled.read_bytes()[:100])

    assert answer(find_or_build(folder, COMPILER)) == 42


def test_where_the_compiler_does_not_work_what_was_built_before_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert COMPILER is not None
    build.build(tmp_path, build.NATIVE, COMPILER, silent)

    assert answer(find_or_build(tmp_path, ("false",))) == 42
    assert "false" in caplog.text


def test_where_nothing_can_be_written_the_library_serves_one_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()

    assert answer(find_or_build(in_the_way / "cache", COMPILER)) == 42
    assert "cannot be written" in caplog.text


def test_without_a_compiler_what_was_built_for_this_cpu_is_used(tmp_path: Path) -> None:
    assert COMPILER is not None
    build.build(tmp_path, build.NATIVE, COMPILER, silent)

    assert answer(find_or_build(tmp_path, None)) == 42


@of_a_known_kind
def test_without_a_compiler_the_best_kind_of_cpu_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert COMPILER is not None
    for target in PORTABLE:
        build.build(tmp_path, target, COMPILER, silent)

    assert answer(find_or_build(tmp_path, None)) == 42
    assert f"built for {PORTABLE[0]}" in caplog.text


def test_without_a_compiler_and_a_library_there_is_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert find_or_build(tmp_path, None) is None
    assert "no C++ compiler" in caplog.text


@pytest.mark.usefixtures("prebuilt")
@of_a_known_kind
@pytest.mark.parametrize("compiler", [COMPILER, None], ids=["a compiler", "no compiler"])
def test_what_a_wheel_brings_is_used_and_nothing_is_compiled(
    compiler: build.Command | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    assert answer(find_or_build(tmp_path / "cache", compiler)) == 42

    assert f"{tmp_path}/prebuilt/" in caplog.text and f"built for {PORTABLE[0]}" in caplog.text
    assert not (tmp_path / "cache").exists()


@of_a_known_kind
def test_what_was_built_for_this_cpu_comes_before_what_a_wheel_brings(
    tmp_path: Path, prebuilt: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert COMPILER is not None
    build.build(tmp_path, build.NATIVE, COMPILER, silent)

    assert answer(find_or_build(tmp_path, COMPILER)) == 42

    assert "built for native" in caplog.text and str(prebuilt) not in caplog.text


@pytest.mark.usefixtures("prebuilt")
@of_a_known_kind
def test_what_a_wheel_brings_is_used_beside_a_compiler_that_does_not_start(tmp_path: Path) -> None:
    assert answer(find_or_build(tmp_path / "cache", ("false",))) == 42


@pytest.mark.usefixtures("prebuilt")
@of_a_known_kind
@pytest.mark.parametrize("compiler", [COMPILER, None], ids=["a compiler", "no compiler"])
def test_what_a_wheel_brings_is_used_where_the_cache_cannot_be_read(
    compiler: build.Command | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    stat_of = Path.stat

    def refusing(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if cache in path.parents:
            raise PermissionError(13, "Permission denied", str(path))
        return stat_of(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", refusing)

    assert answer(find_or_build(cache, compiler)) == 42
    assert answer(find_or_build(tmp_path / ("too long" * 50), compiler)) == 42


@of_a_known_kind
def test_what_a_wheel_brings_is_used_where_nothing_can_be_run_from_the_cache(
    tmp_path: Path, prebuilt: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert COMPILER is not None
    cached = build.build(tmp_path, build.NATIVE, COMPILER, silent)
    cached.write_bytes(b"no library" + build._seal(b"no library"))

    assert answer(find_or_build(tmp_path, COMPILER)) == 42

    assert f"{cached} cannot be loaded" in caplog.text


@pytest.mark.usefixtures("prebuilt")
@of_a_known_kind
def test_what_a_wheel_brings_of_other_sources_is_not_used(tmp_path: Path, one_source: Path) -> None:
    one_source.write_text('extern "C" int answer() { return 43; }')

    assert find_or_build(tmp_path / "cache", None) is None
    assert answer(find_or_build(tmp_path / "cache", COMPILER)) == 43


@of_a_known_kind
def test_what_a_wheel_brings_damaged_is_said_and_not_used(
    tmp_path: Path, prebuilt: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (brought,) = libraries(prebuilt)
    brought.write_bytes(brought.read_bytes()[:-1])

    assert find_or_build(tmp_path / "cache", None) is None
    assert f"{brought} is damaged" in caplog.text


@pytest.mark.wide
def test_what_many_sources_begin_with_is_read_once(tmp_path: Path, one_source: Path) -> None:
    one_source.write_text('extern "C" int answer() { return std::max(41, 42); }')
    for number in range(build.FEW_SOURCES):
        (one_source.parent / f"other_{number}.cpp").write_text("")
    said: list[tuple[int, int]] = []
    assert COMPILER is not None

    made = build.build(tmp_path, build.NATIVE, COMPILER, lambda *counts: said.append(counts))

    assert answer(ctypes.CDLL(str(made))) == 42
    assert said[0] == (0, build.FEW_SOURCES + 1)
    assert said[-1] == (build.FEW_SOURCES + 1, build.FEW_SOURCES + 1)


def test_as_many_compilers_run_at_once_as_there_are_cores_to_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(build, "usable_cores", lambda: 1.5)

    assert build.num_threads() == 2


def test_a_build_says_how_far_it_is_now_and_then() -> None:
    lines: list[str] = []
    clock = ManualClock()
    progress = BuildProgress(lines.append, every_s=5, clock=clock)

    for num_compiled in range(5):
        progress(num_compiled, 4)
        clock.advance(2)

    assert lines == [
        "kernels: 0 of 4 compiled, 0 s",
        "kernels: 3 of 4 compiled, 6 s",
        "kernels: 4 of 4 compiled, 8 s",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("file", [Terminal(), io.StringIO()], ids=["terminal", "file"])
def test_the_last_line_about_a_build_is_ended_and_one_with_nothing_to_do_says_nothing(
    file: io.StringIO,
) -> None:
    progress_on(file)(0, 0)
    assert not file.getvalue()
    progress = progress_on(file)

    for num_compiled in range(3):
        progress(num_compiled, 2)

    first, *_, last = file.getvalue().splitlines()
    assert first.startswith("kernels: 0 of 2 compiled")
    assert last.startswith("kernels: 2 of 2 compiled")
    assert file.getvalue().endswith("\n")
    assert file.getvalue().count("\n") == (1 if file.isatty() else 2)


def test_whoever_builds_at_first_use_says_so_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    find_or_build(tmp_path / "cache", COMPILER)

    assert "kernels for this CPU are compiled, once: 1 source," in caplog.text


def test_a_compiler_may_be_several_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = tmp_path / "a launcher"
    launcher.write_text(f'#!/bin/sh\necho "$1" >> "{tmp_path}/launched"\nexec "$@"\n')
    launcher.chmod(launcher.stat().st_mode | stat.S_IXUSR)
    assert COMPILER is not None
    monkeypatch.setenv("CXX", f"'{launcher}' {shlex.join(COMPILER)} -DUNUSED")

    assert answer(find_or_build(tmp_path / "cache", find_compiler())) == 42

    assert set((tmp_path / "launched").read_text().split()) == {COMPILER[0]}


def test_a_compiler_whose_first_word_is_no_program_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "no-such-launcher g++")

    assert find_compiler() is None


def test_what_does_not_compile_is_said(tmp_path: Path, one_source: Path) -> None:
    one_source.write_text("this is not C++")

    with pytest.raises(subprocess.CalledProcessError) as failed:
        find_or_build(tmp_path / "cache", COMPILER)
    assert f"{one_source}:1:1: error" in failed.value.stderr


def test_several_may_build_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "cache"

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: answer(find_or_build(folder, COMPILER)), range(4)))

    assert found == [42] * 4
    assert len(libraries(folder)) == 1


def test_those_who_build_at_once_compile_once(tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in *-c*) echo once >> {tmp_path}/compiled;; esac\n'
        f'exec {shlex.join(COMPILER or ())} "$@"\n'
    )
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    folder = tmp_path / "cache"

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: find_or_build(folder, (str(compiler),)), range(4)))

    assert (tmp_path / "compiled").read_text() == "once\n"


@pytest.mark.parametrize(
    ("compiler", "cache", "said"),
    [("false", "cache", "false'"), ("true", "cache", "No such file"), ("g++", "file", "file")],
)
def test_building_ahead_tells_in_a_line_why_it_cannot(
    compiler: str, cache: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    environment = {**os.environ, "CXX": compiler, "BATON_CACHE": str(tmp_path / cache)}
    command = [sys.executable, "-m", "baton.kernels.cpu"]

    failed = subprocess.run(command, env=environment, capture_output=True, text=True)

    assert failed.returncode == 1
    assert said in failed.stderr and "Traceback" not in failed.stderr


def test_building_ahead_says_what_it_built(tmp_path: Path) -> None:
    """By a compiler that makes an empty file of everything: what it makes is not at issue."""
    compiler = tmp_path / "compiler"
    compiler.write_text(
        "#!/bin/sh\n"
        'while [ "$#" -gt 0 ]; do if [ "$1" = -o ]; then echo made > "$2"; fi; shift; done\n'
        "echo a compiler\n"
    )
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    environment = {**os.environ, "CXX": str(compiler), "BATON_CACHE": str(tmp_path / "cache")}
    others = build.other_targets()
    command = [sys.executable, "-m", "baton.kernels.cpu", "all", *others]

    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    lines = said.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [*build.targets(), *others]
    assert others
    assert all(Path(line.split()[-1]).exists() for line in lines)


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_CACHE", "/somewhere")
    assert cache_folder() == Path("/somewhere/kernels")
    monkeypatch.delenv("BATON_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_folder() == Path("/elsewhere/baton/kernels")


def test_without_a_compiler_set_up_goes_on_and_says_what_that_costs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "/no/such/g++")

    monkeypatch.setattr(sys, "argv", ["kernels", "--if-possible"])
    assert ahead_of_time.main() == 0
    assert "kernels are torch's, and slower" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["kernels"])
    assert ahead_of_time.main() == 1
    assert "install g++" in capsys.readouterr().err
