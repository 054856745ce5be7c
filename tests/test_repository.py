"""The tree keeps its promises: one view of it, fresh generated code, layers that stay apart."""

from __future__ import annotations

import ast
import os
import platform
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from fnmatch import filter as matching
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
VIEW = ROOT / "src" / "baton"
PROTO = ROOT / "proto"
PATH = re.compile(r"(?<![\w./*<>:-])[\w./*<>-]*[\w*>]\.(?:py|cpp|h|md|proto)\b(?!\()")
MODULE = re.compile(r"-m\s+((?:baton|bench|examples|tests)(?:\.[a-z_]\w*)*)\b")
"""A module of ours that a command runs; not the NAME that stands for one."""
FOLDER = re.compile(r"`((?:[\w.<>*-]+/)+)`")


def links() -> list[Path]:
    found = [path for path in VIEW.iterdir() if path.is_symlink()]
    assert found
    return found


def imported_by(module: str) -> set[str]:
    """Every module that a fresh interpreter has loaded once it has imported `module`."""
    script = f"import sys; import {module}; print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    run = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    return set(run.stdout.split())


def packages(modules: set[str]) -> set[str]:
    return {module.split(".")[0] for module in modules}


def test_each_link_points_at_the_folder_of_its_name() -> None:
    assert all(link.resolve() == ROOT / link.name for link in links())


def test_each_link_is_relative_so_that_a_clone_elsewhere_works() -> None:
    assert all(os.readlink(link) == f"../../{link.name}" for link in links())


def test_every_folder_of_product_code_is_in_the_view() -> None:
    linked = {link.name for link in links()}
    not_product = {"bench", "docs", "examples", "helm", "src", "tests"}
    folders = {
        path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")
    }
    assert {name for name in folders - not_product if any((ROOT / name).rglob("*.py"))} == linked


def test_no_top_level_folder_is_itself_importable() -> None:
    """An __init__.py in platform/ would shadow the stdlib module whenever cwd is the root."""
    assert not [link.name for link in links() if (link / "__init__.py").exists()]
    assert platform.__file__.startswith(sysconfig.get_paths()["stdlib"])


def test_from_the_root_the_standard_platform_module_is_still_itself() -> None:
    script = "import platform, uuid; print(platform.__file__)"

    run = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert run.stdout.startswith(sysconfig.get_paths()["stdlib"])


def test_every_folder_below_a_link_is_a_package() -> None:
    """Else it would be a namespace package, which tools and wheels treat differently."""
    folders = {
        path.parent
        for link in links()
        for path in (ROOT / link.name).rglob("*.py")
        if path.parent != ROOT / link.name
    }
    assert folders
    assert not [str(folder) for folder in folders if not (folder / "__init__.py").is_file()]


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def files_of_ours() -> list[str]:
    """Every file that is no tool's, from the root."""
    folders = {path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "."}
    deep = (path for folder in folders for path in folder.rglob("*.*") if folder.name != "src")
    return [str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.*"), *deep)]


def is_there(named: str, page: Path, files: list[str]) -> bool:
    """`named`, with * or <word> for what differs, from the root or from `page`; a bare name may lie
    anywhere, and a folder has files."""
    pattern = re.sub(r"<\w+>", "*", named)
    if named.endswith("/"):
        return bool(matching(files, f"{pattern}*") or matching(files, f"*/{pattern}*"))
    if "/" not in pattern:
        return bool(matching([os.path.basename(file) for file in files], pattern))
    beside = os.path.relpath(page.parent / pattern, ROOT)
    return bool(matching(files, pattern) or matching(files, beside))


def test_every_file_and_folder_that_the_docs_name_exists() -> None:
    files = files_of_ours()
    found = [
        (page, named)
        for page in pages()
        for text in [re.sub(r"https?://\S+|llama\.cpp", "", page.read_text())]
        for named in {*PATH.findall(text), *FOLDER.findall(text)}
    ]

    assert found
    assert not [
        f"{page.relative_to(ROOT)}: {named}"
        for page, named in found
        if not is_there(named, page, files)
    ]


def is_runnable(module: str) -> bool:
    """Whether `python -m` finds the module, or the __main__ of the package."""
    try:
        spec = find_spec(module)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = find_spec(f"{module}.__main__")
    except ModuleNotFoundError:  # of a package above
        return False
    return spec is not None


def test_every_module_that_docs_and_benchmarks_say_to_run_exists() -> None:
    files = [*pages(), ROOT / "Makefile", *(ROOT / "bench").rglob("*.py")]
    found = [(file, module) for file in files for module in MODULE.findall(file.read_text())]

    assert len({module for _, module in found}) > 50
    assert not [
        f"{file.relative_to(ROOT)}: {module}" for file, module in found if not is_runnable(module)
    ]


def test_the_committed_protobuf_code_is_what_make_proto_generates(tmp_path: Path) -> None:
    sources = sorted(PROTO.glob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", "src"]
    command += [f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}"]
    command += [f"--mypy_out=readable_stubs,quiet:{tmp_path}", f"--mypy_grpc_out=quiet:{tmp_path}"]
    command += [f"src/baton/proto/{source.name}" for source in sources]
    plugins = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    subprocess.run(command, cwd=ROOT, env={**os.environ, "PATH": plugins}, check=True)

    generated = {path.name: path for path in (tmp_path / "baton" / "proto").iterdir()}
    committed = {path.name: path for path in PROTO.glob("*_pb2*.py*")}
    assert len(sources) == 3
    assert set(generated) == set(committed)
    stale = [
        name for name, path in generated.items() if path.read_text() != committed[name].read_text()
    ]
    assert not stale, "run `make proto`"


@pytest.mark.parametrize("target", ["python_out", "grpc_python_out", "mypy_out", "mypy_grpc_out"])
def test_the_makefile_generates_what_the_test_above_compares(target: str) -> None:
    assert f"--{target}=" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize(
    ("goal", "arguments", "statuses", "is_passed"),
    [
        ("test", "-k 'a or b'", (5, 0), True),
        ("test", "tests/engine", (0, 5), True),
        ("test", "-k typo", (5, 5), False),
        ("test", "-k draft", (0, 1), False),
        ("test", "", (0, 5), False),
        ("test-all", "-k wide", (5, 5, 0, 5), True),
    ],
)
def test_make_test_passes_only_if_a_test_ran(
    goal: str, arguments: str, statuses: tuple[int, ...], is_passed: bool, tmp_path: Path
) -> None:
    """With a pytest that ends with these, one after the other."""
    (tmp_path / "bin").mkdir()
    for name in ("bin/python", ".serve", ".dev", ".kernels"):
        (tmp_path / name).touch()
    (tmp_path / "left").write_text("".join(f"{status}\n" for status in statuses))
    fake = tmp_path / "pytest"
    fake.write_text('f=$(dirname "$0")/left; s=$(head -n1 "$f"); sed -i 1d "$f"; exit "$s"\n')

    run = subprocess.run(
        ["make", goal, f"VENV={tmp_path}", f"PYTEST=sh {fake}", f"ARGS={arguments}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )

    assert (run.returncode == 0) is is_passed, run.stderr
    assert not is_passed or not (tmp_path / "left").read_text()


def test_the_engine_runs_with_torch_safetensors_and_tokenizers_alone() -> None:
    modules = imported_by("baton.engine.assemble")

    unwanted = {"ray", "grpc", "msgspec", "transformers", "starlette", "xxhash"}
    assert packages(modules) & unwanted == set()
    assert "google.protobuf" not in modules
    assert ours(modules) <= {"core", "kernels", "engine"}


def test_a_gateway_needs_neither_torch_nor_ray() -> None:
    modules = imported_by("baton.platform.cluster.gateway_node")

    assert packages(modules) & {"torch", "ray", "transformers", "triton"} == set()


def test_the_client_sees_only_proto() -> None:
    modules = imported_by("baton.client.client")

    assert ours(modules) == {"client", "proto"}
    assert packages(modules) & {"torch", "ray", "numpy", "msgspec", "starlette"} == set()


def test_serve_does_not_wait_for_what_its_replicas_need() -> None:
    modules = imported_by("baton.platform.cli.commands.serve")

    unwanted = {"torch", "ray", "transformers", "huggingface_hub", "grpc", "tokenizers"}
    assert packages(modules) & unwanted == set()


def ours(modules: set[str]) -> set[str]:
    """The top-level folders that `modules` come from."""
    return {module.split(".")[1] for module in modules if module.startswith("baton.")}


TIMED = ("core", "decode_service", "engine", "kv_transfer", "prefill_service", "proto", "router")
TIMED_PLACES = ("gateway/fleet", "platform/faults", "platform/registry", "platform/replica")
WALL_CLOCK = re.compile(
    r"\btime\.time(?:_ns)?\b|\bdatetime\.now\b|\butcnow\b|\bdate\.today\b"
    r"|\bCLOCK_REALTIME\b|\btime\.(?:localtime|gmtime|ctime)\b|\bimport time_ns\b"
    r"|\bfrom time import .*\btime\b"
)
DATES = {"gateway/fleet/placement/decision_log.py", "platform/replica/examination.py"}
"""When something was decided, for people; clocks, for `baton doctor` to compare."""


def test_a_clock_that_jumps_changes_nothing_that_is_timed() -> None:
    """Leases, deadlines, heartbeats: each process has a clock of its own that never jumps, and only
    durations go from one to another."""
    rooms = (*TIMED, "replica_core", *TIMED_PLACES)
    files = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    told = {str(path.relative_to(ROOT)) for path in files if WALL_CLOCK.search(path.read_text())}

    assert len(files) > 400
    assert told == DATES


DESCRIBED = (
    *("client", "core", "decode_service", "engine", "gateway", "kernels", "kv_transfer"),
    *("platform", "prefill_service", "proto", "replica_core", "router"),
)
"""Folders whose docstrings all have a subject."""
WITHOUT_SUBJECT = re.compile(r"\s*(?:Of|Those|That|Whom) ")
MAY_LACK_SUBJECT = re.compile(rf"[\"']{WITHOUT_SUBJECT.pattern}")


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring of a file, those of fields and constants among them, if any
    text of it might begin without a subject."""
    source = path.read_text()
    for node in ast.walk(ast.parse(source)) if MAY_LACK_SUBJECT.search(source) else ():
        match node:
            case ast.Expr(value=ast.Constant(value=str(text)), lineno=line):
                yield line, text


@pytest.mark.parametrize("folder", DESCRIBED)
def test_every_docstring_says_what_it_speaks_of(folder: str) -> None:
    """`Blocks held, by tenant`, not `Of each tenant`."""
    files = [path for path in (ROOT / folder).rglob("*.py") if "_pb2" not in path.name]
    found = [(path, line, text) for path in files for line, text in docstrings(path)]
    assert files
    assert not [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path, line, text in found
        if WITHOUT_SUBJECT.match(text)
    ]
