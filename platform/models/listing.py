"""The listing of a model at its source: files by name, size and digest.

The version identifies the state of all files: a commit of the hub, else a digest of the list. A
node keeps each version in its own folder, so files never change while they are open.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

import msgspec

from baton.core.errors import CheckpointError
from baton.gateway.text.model_files import ADDITIONAL_TEMPLATES
from baton.platform.models.digest import is_digest

CONFIG = "config.json"
DESCRIPTIONS = ("*.json", "*.jinja", "*.model")
SAFE, PICKLED = "model.safetensors", "pytorch_model.bin"
WEIGHTS = (SAFE, PICKLED)
"""Weight files by preference; large ones are sharded: `model-00001-of-00003.safetensors`."""
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
"""What PEFT writes for an adapter: weight files by preference."""
SUMS = "SHA256SUMS"
"""The output of `sha256sum *` in the folder; if present, files are verified against it."""

_SUM = re.compile(r"([0-9a-f]{64}) [ *](.+)")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=,@ -]{0,199}")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class RemoteFile(msgspec.Struct, frozen=True):
    name: str
    size: int
    digest: str = ""
    """See `digest.py`. Empty while unknown."""
    etag: str = ""
    """An ETag that changes with the file, if known."""

    def __post_init__(self) -> None:
        if not is_model_file(self.name):
            raise ValueError(f"{self.name!r} is no name of a file in a model's folder")
        if self.size < 0 or (self.digest and not is_digest(self.digest)):
            raise ValueError(f"{self.name}: no size, or no digest: {self.size}, {self.digest!r}")


class Listing(msgspec.Struct, frozen=True):
    model: str
    version: str
    files: tuple[RemoteFile, ...]

    def __post_init__(self) -> None:
        if not _VERSION.fullmatch(self.version):
            raise ValueError(f"{self.version!r} is no version")

    def chosen(self, *, wants_weights: bool) -> tuple[RemoteFile, ...]:
        """The files that Baton reads."""
        names = choose_files([file.name for file in self.files], wants_weights=wants_weights)
        by_name = {file.name: file for file in self.files}
        return tuple(by_name[name] for name in names)


def list_files(
    model: str, files: Iterable[RemoteFile], *, is_trusted: bool = False, version: str = ""
) -> Listing:
    """Raises CheckpointError if it is the listing of neither a model nor an adapter.

    `is_trusted`: pickled weights are taken, too. Without a `version`, the files make one.
    """
    kept = tuple(file for file in files if is_trusted or not file.name.endswith(".bin"))
    names = [file.name for file in kept]
    if CONFIG not in names and ADAPTER_CONFIG not in names:
        raise CheckpointError(
            f"{model} has no {CONFIG}: not a Hugging Face model folder, nor one of an adapter"
        )
    if not version:
        facts = sorted(f"{one.name} {one.size} {one.digest or one.etag}" for one in kept)
        version = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
    return Listing(model, version, kept)


def is_plain(name: str) -> bool:
    """Whether it is a plain file name, without a path."""
    return bool(_NAME.fullmatch(name)) and Path(name).name == name


def is_model_file(name: str) -> bool:
    """Whether it is a plain file name, or a chat template in `additional_chat_templates/`."""
    folder, slash, inner = name.rpartition("/")
    if not slash:
        return is_plain(name)
    return folder == ADDITIONAL_TEMPLATES and is_plain(inner) and inner.endswith(".jinja")


def files_in(folder: Path) -> Iterator[tuple[str, Path]]:
    """The model files of a folder, sorted by name."""
    for path in sorted((*folder.iterdir(), *folder.glob(f"{ADDITIONAL_TEMPLATES}/*"))):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and is_model_file(name):
            yield name, path


def parse_sums(text: str) -> dict[str, str]:
    """Digests by name; lines about other files are left out."""
    found = {}
    for line in text.splitlines():
        match = _SUM.fullmatch(line.rstrip())
        name = match[2].removeprefix("./") if match else ""
        if match and is_model_file(name):
            found[name] = f"sha256:{match[1]}"
    return found


def choose_files(names: Iterable[str], *, wants_weights: bool) -> list[str]:
    """The files of a repository that Baton reads: no subfolders except chat templates, weights of
    one kind; of an adapter's, those of the adapter alone. A repository that is both has both."""
    known = [name for name in names if is_model_file(name)]
    plain = [*filter(is_plain, known)]
    weights, of_adapter = weights_of(plain), adapter_weights_of(plain)
    if of_adapter and not weights:
        chosen = [ADAPTER_CONFIG]
    else:
        chosen = [name for name in known if any(fnmatch(name, pattern) for pattern in DESCRIPTIONS)]
    return [*chosen, *weights, *of_adapter] if wants_weights else chosen


def weights_of(names: Sequence[str]) -> list[str]:
    for kind in WEIGHTS:
        stem, suffix = kind.split(".")
        weights = [n for n in names if n == kind or fnmatch(n, f"{stem}-?*-of-?*.{suffix}")]
        if weights:
            return weights
    return []


def adapter_weights_of(names: Sequence[str]) -> list[str]:
    """The weight file of an adapter's folder; none without an adapter's configuration."""
    found = [name for name in ADAPTER_WEIGHTS if name in names]
    return found[:1] if ADAPTER_CONFIG in names else []


def shards_of(index: bytes) -> list[str]:
    """The files that a `model.safetensors.index.json` names. Raises CheckpointError."""
    try:
        weight_map = msgspec.json.decode(index, type=dict[str, object]).get("weight_map")
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{SAFE}.index.json is no JSON object: {error}") from error
    names = set(map(str, weight_map.values())) if isinstance(weight_map, Mapping) else set()
    if strange := [name for name in names if not is_plain(name)]:
        raise CheckpointError(f"{SAFE}.index.json names a file outside its folder: {strange[0]!r}")
    return sorted(names)
