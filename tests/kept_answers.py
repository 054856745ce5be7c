"""What takes long to make and is the same each time, kept from run to run and for all workers.

A thing's key is all it depends on. It is made in a folder of its own that is renamed when whole, so
a run that is killed leaves nothing half made; of two workers that want it, one waits.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock
from safetensors.torch import load_file, save_file
from torch import Tensor

ROOT = Path(__file__).parent.parent / ".pytest_cache" / "kept"
VERSIONS = [f"{name} {version(name)}" for name in ("torch", "transformers", "safetensors")]


def copy_kept(key: object, make: Callable[[Path], object], target: Path) -> Path:
    """The folder that `make` fills, copied: tests may write to theirs."""
    return shutil.copytree(_kept(key, make), target, dirs_exist_ok=True)


def kept_tensors(key: object, compute: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
    def write(folder: Path) -> None:
        save_file({name: each.contiguous() for name, each in compute().items()}, folder / "tensors")

    return load_file(_kept(key, write) / "tensors")


def digest(folder: Path) -> str:
    """Of all it holds."""
    found = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        found.update(f"{path.relative_to(folder)} {path.stat().st_size} ".encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def _kept(key: object, make: Callable[[Path], object]) -> Path:
    name = hashlib.sha256(repr((VERSIONS, key)).encode()).hexdigest()[:32]
    folder = ROOT / name
    if folder.exists():
        return folder
    ROOT.mkdir(parents=True, exist_ok=True)
    with FileLock(ROOT / f"{name}.lock"):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=ROOT) as temporary:
                made = Path(temporary) / "made"
                made.mkdir()
                make(made)
                made.rename(folder)
    return folder
